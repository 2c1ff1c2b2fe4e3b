//! Exact rounding of f64 to fp16.

use half::f16;

/// Rounds to the nearest fp16, ties to even, subnormals kept; from 65520 on to infinity; NaN stays NaN.
///
/// This is the conversion of `struct.pack("<e", x)` and of `IEEE 754`. `f16::from_f64` is not used for the rounding: its
/// portable form drops the low half of the mantissa first, which turns values just above a tie into ties. Here the
/// rounding is done on an f64 that is an exact integer afterwards, and the last conversion is exact.
pub(crate) fn f16_from_f64(x: f64) -> f16 {
    if !x.is_finite() || x == 0.0 {
        return f16::from_f32(x as f32);
    }
    if x.abs() >= 65_520.0 {
        return if x > 0.0 { f16::INFINITY } else { f16::NEG_INFINITY };
    }
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    // The distance of neighbouring fp16 values at x: 2^(e-10), not below 2^-24.
    let quantum = f64::from_bits(((1023 + (exponent - 10).max(-24)) as u64) << 52);
    let rounded = (x / quantum).round_ties_even() * quantum;
    f16::from_f32(rounded as f32)
}

/// Rounds to an integer, ties to even, for |x| < 2^51: the sum pushes the fraction out of the mantissa. Unlike a call of
/// `rint` it is two additions on any CPU.
#[inline(always)]
pub(crate) fn round_half_even(x: f64) -> f64 {
    const PUSH: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    (x + PUSH) - PUSH
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of neighbours, at their middle and one f64 step to either side, both signs.
    #[test]
    fn every_tie_and_its_neighbours() {
        for bits in 0..0x7bff_u16 {
            let (low, high) = (f16::from_bits(bits).to_f64(), f16::from_bits(bits + 1).to_f64());
            let middle = f64::midpoint(low, high);
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            for (x, expected) in [
                (low, bits),
                (middle.next_down(), bits),
                (middle, even),
                (middle.next_up(), bits + 1),
                (high, bits + 1),
            ] {
                assert_eq!(f16_from_f64(x).to_bits(), expected, "{x:e}");
                assert_eq!(f16_from_f64(-x).to_bits(), expected | 0x8000, "-{x:e}");
            }
        }
    }

    #[test]
    fn edges() {
        for (x, expected) in [
            (65_504.0, 0x7bff),
            (65_520.0_f64.next_down(), 0x7bff),
            (65_520.0, 0x7c00),
            (1e300, 0x7c00),
            (f64::INFINITY, 0x7c00),
            (0.0, 0),
            (2_f64.powi(-25), 0),
            (2_f64.powi(-25).next_up(), 1),
            (2_f64.powi(-24), 1),
            (f64::MIN_POSITIVE, 0),
            (5e-324, 0),
        ] {
            assert_eq!(f16_from_f64(x).to_bits(), expected, "{x:e}");
            assert_eq!(f16_from_f64(-x).to_bits(), expected | 0x8000, "-{x:e}");
        }
        assert!(f16_from_f64(f64::NAN).is_nan());
    }

    #[test]
    fn rounding_by_addition_is_rounding() {
        for i in -2000..2000 {
            let x = f64::from(i) / 8.0;
            for x in [x, x.next_up(), x.next_down()] {
                assert!((round_half_even(x) - x.round_ties_even()).abs() < 1e-9, "{x}");
            }
        }
    }
}
