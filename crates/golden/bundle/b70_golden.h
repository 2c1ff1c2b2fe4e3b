/* b70_golden.h: reads a golden set of b70kit. C99, little-endian hosts, no dependencies.
 *
 * A set is a folder:
 *   weights.q4_0.bin      [N,K] Q4_0, row-major; 32 columns are a block of 18 bytes: fp16 d, then 16 bytes, byte j
 *                         holds code j in its low nibble and code j+16 in its high nibble; weight = d * (code - 8)
 *   input-mM.q8_1.bin     [M,K] Q8_1, row-major; a block of 36 bytes: fp16 d, fp16 s, 32 signed bytes q;
 *                         input = d * q, and s stands for d * (sum of q)
 *   expected-mM.f32.bin   [M,N] float: for each output, over blocks in ascending order and in double,
 *                         the sum of d_w * d_x * (integer dot product), rounded to float once at the end
 *   weights.xe2-dpas-v2.bin   optional: the same weights for Xe2 DPAS, K*N/2 + K*N/16 bytes. Quants, as 32-bit words:
 *                         word ((b*N/16 + t)*4 + g)*16 + lane holds the columns 32b+8g .. 32b+8g+7 of row 16t+lane,
 *                         the first in the lowest nibble, as signed 4-bit numbers (code XOR 8). Then the scales:
 *                         fp16 number b*N + row, after all quants.
 *   manifest.json         K, N, the widths M, and a SHA-256 for each file; check it with sha256sum
 * Values are fixtures of a kernel's arithmetic made from random numbers: never evidence of speed or of a model.
 */
#ifndef B70_GOLDEN_H
#define B70_GOLDEN_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint8_t d[2], codes[16]; } b70_q4_0;       /* 18 bytes */
typedef struct { uint8_t d[2], s[2]; int8_t q[32]; } b70_q8_1; /* 36 bytes */

/* fp16 of two little-endian bytes as float; exact. */
static inline float b70_half(const uint8_t h[2]) {
    uint32_t bits = (uint32_t)h[0] | (uint32_t)h[1] << 8, sign = (bits & 0x8000u) << 16;
    uint32_t exponent = bits >> 10 & 31u, fraction = bits & 1023u, out;
    float value;
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24 */
        value = (float)fraction * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    out = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23) | fraction << 13;
    memcpy(&value, &out, sizeof value);
    return value;
}

/* Reads `folder/name`, which must have exactly `size` bytes; the caller frees it. NULL if it cannot be read so. */
static inline void *b70_read(const char *folder, const char *name, size_t size) {
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = length > 0 && (size_t)length < sizeof path ? fopen(path, "rb") : NULL;
    void *bytes = file ? malloc(size ? size : 1) : NULL;
    if (bytes && (fread(bytes, 1, size, file) != size || fgetc(file) != EOF)) { free(bytes); bytes = NULL; }
    if (file) fclose(file);
    return bytes;
}

static inline b70_q4_0 *b70_weights(const char *folder, size_t n, size_t k) {
    return (b70_q4_0 *)b70_read(folder, "weights.q4_0.bin", n * (k / 32) * sizeof(b70_q4_0));
}

static inline uint8_t *b70_weights_xe2(const char *folder, size_t n, size_t k) {
    return (uint8_t *)b70_read(folder, "weights.xe2-dpas-v2.bin", n * (k / 32) * sizeof(b70_q4_0));
}

static inline b70_q8_1 *b70_input(const char *folder, size_t m, size_t k) {
    char name[64];
    snprintf(name, sizeof name, "input-m%zu.q8_1.bin", m);
    return (b70_q8_1 *)b70_read(folder, name, m * (k / 32) * sizeof(b70_q8_1));
}

static inline float *b70_expected(const char *folder, size_t m, size_t n) {
    char name[64];
    snprintf(name, sizeof name, "expected-m%zu.f32.bin", m);
    return (float *)b70_read(folder, name, m * n * sizeof(float));
}

/* The reference product of one output: what every value of an expected file is. */
static inline float b70_product(const b70_q4_0 *w, const b70_q8_1 *x, size_t blocks) {
    double sum = 0;
    for (size_t b = 0; b < blocks; b++) {
        int dot = 0;
        for (int j = 0; j < 16; j++)
            dot += ((w[b].codes[j] & 15) - 8) * x[b].q[j] + ((w[b].codes[j] >> 4) - 8) * x[b].q[j + 16];
        sum += (double)b70_half(w[b].d) * (double)b70_half(x[b].d) * dot;
    }
    return (float)sum;
}
#endif
