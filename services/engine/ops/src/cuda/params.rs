//! Parameters of kernels: plain structs that Rust and C++ lay out alike.

/// A struct that a kernel takes by value.
pub trait Parameters: Copy + 'static {
    /// How it is laid out.
    const LAYOUT: &'static Layout;
}

/// The layout of a struct.
#[derive(Debug)]
pub struct Layout {
    pub name: &'static str,
    pub size: usize,
    pub fields: &'static [Field],
    /// Structs that its fields consist of.
    pub needs: &'static [&'static Layout],
}

/// One field.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub c_type: &'static str,
    /// 1, or the length of an array.
    pub count: usize,
    pub offset: usize,
}

/// A type that both languages know.
pub trait FieldType {
    const C_TYPE: &'static str;
    const COUNT: usize = 1;
}

macro_rules! field_types {
    ($($rust:ty => $c:literal),* $(,)?) => {
        $(impl FieldType for $rust { const C_TYPE: &'static str = $c; })*
    };
}
field_types!(u64 => "u64", u32 => "u32", i32 => "i32", f32 => "float");

impl<T: FieldType, const N: usize> FieldType for [T; N] {
    const C_TYPE: &'static str = T::C_TYPE;
    const COUNT: usize = N;
}

/// Declares structs of parameters. Padding would be read by nobody and differ between runs, so fields must fill the
/// struct: that is checked when it compiles.
#[macro_export]
macro_rules! params {
    ($($(#[$meta:meta])* pub struct $name:ident $(needs($($need:ty),*))? {
        $($(#[$field_meta:meta])* pub $field:ident: $kind:ty),* $(,)?
    })*) => { $(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $kind),* }

        impl $crate::cuda::FieldType for $name {
            const C_TYPE: &'static str = stringify!($name);
        }

        impl $crate::cuda::Parameters for $name {
            const LAYOUT: &'static $crate::cuda::Layout = &$crate::cuda::Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: &[$($crate::cuda::Field {
                    name: stringify!($field),
                    c_type: <$kind as $crate::cuda::FieldType>::C_TYPE,
                    count: <$kind as $crate::cuda::FieldType>::COUNT,
                    offset: ::std::mem::offset_of!($name, $field),
                }),*],
                needs: &[$($(<$need as $crate::cuda::Parameters>::LAYOUT),*)?],
            };
        }

        const _: () = assert!(
            size_of::<$name>() == 0 $(+ size_of::<$kind>())*,
            "parameters have no padding"
        );
    )* };
}

crate::params! {
    /// Where a tensor of bf16 lies: the address of its first channel, and what a pixel of its buffer takes.
    pub struct View {
        pub pointer: u64,
        /// Elements from a pixel to the next.
        pub pitch: u32,
        /// Elements of this tensor in a pixel, padding included; a multiple of 8.
        pub channels: u32,
    }
    /// A divisor for numbers below 2^31, prepared for a multiplication.
    pub struct FastDiv {
        pub magic: u32,
        pub shift: u32,
        pub divisor: u32,
    }
}

impl FastDiv {
    /// Prepares a divisor.
    pub fn new(divisor: u32) -> Self {
        assert!(
            (1..=1 << 30).contains(&divisor),
            "invariant: a divisor is 1 to 2^30"
        );
        let shift = divisor.next_power_of_two().trailing_zeros();
        let excess = (1u64 << shift) - u64::from(divisor);
        Self {
            magic: ((excess << 32) / u64::from(divisor) + 1) as u32,
            shift,
            divisor,
        }
    }

    /// Returns how many items `count` times the divisor are, which threads number and divide by it.
    pub fn items(self, count: u32) -> u32 {
        let items = u64::from(count) * u64::from(self.divisor);
        assert!(
            items < 1 << 31,
            "invariant: items are below 2^31, not {items}"
        );
        items as u32
    }

    /// Divides as the kernels do.
    pub fn quotient(self, value: u32) -> u32 {
        let high = ((u64::from(value) * u64::from(self.magic)) >> 32) as u32;
        (high + value) >> self.shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prepared_divisor_divides() {
        let values = [0, 1, 2, 7, 80, 6399, 6400, 1 << 20, (1 << 31) - 1];
        for divisor in (1..400).chain([6400, 102_400, 1 << 30]) {
            let fast = FastDiv::new(divisor);
            for value in values
                .into_iter()
                .chain([divisor - 1, divisor, divisor + 1])
            {
                assert_eq!(fast.quotient(value), value / divisor, "{value} / {divisor}");
            }
        }
    }
}
