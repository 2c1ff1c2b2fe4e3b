/* Reads a golden set with nothing but its own header and checks every output: usage: consumer FOLDER K N M... */
#include "b70_golden.h"

static int weight_of_word(const uint8_t *packed, size_t n, size_t row, size_t column) {
    size_t b = column / 32, g = column % 32 / 8, i = column % 8;
    size_t word = ((b * (n / 16) + row / 16) * 4 + g) * 16 + row % 16;
    int nibble = packed[word * 4 + i / 2] >> (i % 2 ? 4 : 0) & 15;
    return nibble >= 8 ? nibble - 16 : nibble;
}

int main(int argc, char **argv) {
    size_t k, n, wrong = 0, checked = 0;
    if (argc < 5) return 2;
    k = (size_t)strtoul(argv[2], NULL, 10);
    n = (size_t)strtoul(argv[3], NULL, 10);
    b70_q4_0 *weights = b70_weights(argv[1], n, k);
    uint8_t *packed = b70_weights_xe2(argv[1], n, k);
    if (!weights || !packed) return 3;
    for (int i = 4; i < argc; i++) {
        size_t m = (size_t)strtoul(argv[i], NULL, 10);
        b70_q8_1 *input = b70_input(argv[1], m, k);
        float *expected = b70_expected(argv[1], m, n);
        if (!input || !expected) return 4;
        for (size_t row = 0; row < m; row++)
            for (size_t column = 0; column < n; column++, checked++) {
                float found = b70_product(weights + column * (k / 32), input + row * (k / 32), k / 32);
                wrong += memcmp(&found, &expected[row * n + column], sizeof found) != 0;
            }
        free(input);
        free(expected);
    }
    for (size_t row = 0; row < n; row++)
        for (size_t column = 0; column < k; column++) {
            const b70_q4_0 *block = &weights[row * (k / 32) + column / 32];
            size_t j = column % 32;
            int code = j < 16 ? block->codes[j] & 15 : block->codes[j - 16] >> 4;
            const uint8_t *scale = packed + k * n / 2 + (column / 32 * n + row) * 2;
            wrong += weight_of_word(packed, n, row, column) != code - 8 || memcmp(scale, block->d, 2) != 0;
        }
    if (b70_expected(argv[1], 999, n)) return 5; /* no such width */
    if (b70_weights(argv[1], n + 1, k)) return 6; /* another size */
    printf("%zu outputs, %zu wrong\n", checked, wrong);
    free(weights);
    free(packed);
    return wrong != 0;
}
