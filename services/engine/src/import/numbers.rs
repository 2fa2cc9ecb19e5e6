//! The number formats of stored tensors, each turned into `f32`.

/// How a tensor's elements are stored, little endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    F32,
    F64,
    F16,
    Bf16,
    I64,
    I32,
}

impl Format {
    /// Returns the bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Returns the elements of whole bytes; what is left over at the end is dropped.
    pub fn read(self, bytes: &[u8]) -> Vec<f32> {
        fn each<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f32) -> Vec<f32> {
            bytes
                .as_chunks::<N>()
                .0
                .iter()
                .map(|&element| read(element))
                .collect()
        }
        match self {
            Self::F32 => each(bytes, f32::from_le_bytes),
            Self::F64 => each(bytes, |element| f64::from_le_bytes(element) as f32),
            Self::F16 => each(bytes, |element| half_to_f32(u16::from_le_bytes(element))),
            Self::Bf16 => each(bytes, |element| {
                f32::from_bits(u32::from(u16::from_le_bytes(element)) << 16)
            }),
            Self::I64 => each(bytes, |element| i64::from_le_bytes(element) as f32),
            Self::I32 => each(bytes, |element| i32::from_le_bytes(element) as f32),
        }
    }
}

/// Widens an IEEE 754 half: 1 sign, 5 exponent and 10 fraction bits. Every half is exact as `f32`.
fn half_to_f32(half: u16) -> f32 {
    const SMALLEST: f32 = 1.0 / (1 << 24) as f32;
    let half = u32::from(half);
    let sign = (half & 0x8000) << 16;
    let (exponent, fraction) = (half >> 10 & 0x1f, half & 0x3ff);
    let magnitude = match exponent {
        // Subnormal: a multiple of the smallest one.
        0 => (fraction as f32 * SMALLEST).to_bits(),
        31 => 0x7f80_0000 | fraction << 13,
        _ => (exponent + 127 - 15) << 23 | fraction << 13,
    };
    f32::from_bits(sign | magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_widened_exactly() {
        for (half, value) in [
            (0x0000, 0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333_251_95),
            (0x7bff, 65504.0),
            (0x0001, 5.960_464_5e-8),
            (0x03ff, 6.097_555e-5),
            (0x0400, 6.103_515_6e-5),
            (0x7c00, f32::INFINITY),
        ] {
            assert_eq!(half_to_f32(half), value, "{half:#06x}");
        }
        assert!(half_to_f32(0x7e00).is_nan());
        assert_eq!(half_to_f32(0x8000).to_bits(), 0x8000_0000);
    }

    #[test]
    fn each_format_reads_its_own_bytes() {
        assert_eq!(Format::F32.read(&1.5f32.to_le_bytes()), [1.5]);
        assert_eq!(Format::F64.read(&0.1f64.to_le_bytes()), [0.1]);
        assert_eq!(Format::I64.read(&(-7i64).to_le_bytes()), [-7.0]);
        assert_eq!(Format::I32.read(&9i32.to_le_bytes()), [9.0]);
        assert_eq!(
            Format::Bf16.read(&[0x80, 0xbf, 0x49, 0x40, 1]),
            [-1.0, 3.140_625]
        );
        assert_eq!(Format::F16.read(&[0x00, 0x3c]), [1.0]);
    }
}
