//! Reads what a kernel needs from its machine code: an ELF file with a section of code for each kernel and one of
//! attributes (`.nv.info`). Instructions are 16 bytes; the lower twelve bits of each say what it does.

use std::collections::BTreeMap;

/// What one kernel needs on one architecture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Resources {
    pub registers: u32,
    /// Bytes a thread; spilled registers lie there.
    pub stack: u32,
    /// Static bytes a block.
    pub shared: u32,
    pub mma: u32,
    pub copies: u32,
    pub matrix_loads: u32,
    /// Accesses of the stack.
    pub local: u32,
}

const SECTION_SYMBOLS: u32 = 2;
const ATTRIBUTE_FRAME: u8 = 0x11;
const ATTRIBUTE_STACK: u8 = 0x12;
const ATTRIBUTE_REGISTERS: u8 = 0x2f;
/// The format of an attribute with a size of its own.
const SIZED: u8 = 4;

const MMA: u16 = 0x23c;
const ASYNC_COPY: u16 = 0xfae;
const MATRIX_LOAD: u16 = 0x83b;
const LOCAL_LOAD: u16 = 0x983;
const LOCAL_STORE: u16 = 0x387;

struct Section<'a> {
    name: &'a str,
    kind: u32,
    bytes: &'a [u8],
    size: u64,
    link: usize,
}

/// A file of machine code.
pub struct Cubin<'a> {
    sections: Vec<Section<'a>>,
    symbols: Vec<&'a str>,
    /// Registers and stack by symbol.
    attributes: BTreeMap<(u8, u32), u32>,
}

impl<'a> Cubin<'a> {
    /// Reads the tables of a file; the error is the rule that it breaks.
    pub fn read(image: &'a [u8]) -> Result<Self, String> {
        if !image.starts_with(b"\x7fELF\x02\x01") {
            return Err("not a 64-bit ELF file".into());
        }
        let sections = sections(image).ok_or("its section table lies outside the file")?;
        let table = sections
            .iter()
            .find(|section| section.kind == SECTION_SYMBOLS)
            .ok_or("no symbols")?;
        let names = sections.get(table.link).ok_or("symbols without names")?;
        let symbols = table
            .bytes
            .chunks_exact(24)
            .map(|symbol| text_at(names.bytes, u32_at(symbol, 0)? as usize))
            .collect::<Option<Vec<_>>>()
            .ok_or("a symbol's name lies outside the file")?;
        let mut attributes = BTreeMap::new();
        for section in sections.iter().filter(|section| section.name == ".nv.info") {
            read_attributes(section.bytes, &mut attributes);
        }
        Ok(Self {
            sections,
            symbols,
            attributes,
        })
    }

    /// Returns the symbols that the compiler's own routines have left.
    pub fn internals(&self) -> Vec<&'a str> {
        let is_internal = |name: &&&str| name.starts_with("$__internal_");
        self.symbols.iter().filter(is_internal).copied().collect()
    }

    /// Returns what a kernel needs.
    pub fn resources(&self, kernel: &str) -> Option<Resources> {
        let section = |prefix: &str| {
            let name = format!("{prefix}{kernel}");
            self.sections.iter().find(|section| section.name == name)
        };
        let code = section(".text.")?;
        let symbol = self.symbols.iter().position(|name| *name == kernel)? as u32;
        let attribute = |kind| self.attributes.get(&(kind, symbol)).copied();
        let mut resources = Resources {
            registers: attribute(ATTRIBUTE_REGISTERS)?,
            stack: attribute(ATTRIBUTE_FRAME)
                .unwrap_or(0)
                .max(attribute(ATTRIBUTE_STACK).unwrap_or(0)),
            shared: section(".nv.shared.").map_or(0, |section| section.size as u32),
            ..Resources::default()
        };
        for instruction in code.bytes.chunks_exact(16) {
            match u16::from_le_bytes([instruction[0], instruction[1]]) & 0xfff {
                MMA => resources.mma += 1,
                ASYNC_COPY => resources.copies += 1,
                MATRIX_LOAD => resources.matrix_loads += 1,
                LOCAL_LOAD | LOCAL_STORE => resources.local += 1,
                _ => {}
            }
        }
        Some(resources)
    }
}

fn sections(image: &[u8]) -> Option<Vec<Section<'_>>> {
    let start = u64_at(image, 40)? as usize;
    let size = u16_at(image, 58)? as usize;
    let count = u16_at(image, 60)? as usize;
    let names_index = u16_at(image, 62)? as usize;
    let head = |index: usize| {
        let from = start.checked_add(index.checked_mul(size)?)?;
        image.get(from..from.checked_add(size)?)
    };
    let bytes_of = |head: &[u8]| {
        // A section without bytes in the file, such as shared memory, has only a size.
        if u32_at(head, 4)? == 8 {
            return Some(&image[..0]);
        }
        let from = u64_at(head, 24)? as usize;
        image.get(from..from.checked_add(u64_at(head, 32)? as usize)?)
    };
    let names = bytes_of(head(names_index)?)?;
    (0..count)
        .map(|index| {
            let head = head(index)?;
            Some(Section {
                name: text_at(names, u32_at(head, 0)? as usize)?,
                kind: u32_at(head, 4)?,
                bytes: bytes_of(head)?,
                size: u64_at(head, 32)?,
                link: u32_at(head, 40)? as usize,
            })
        })
        .collect()
}

/// Reads pairs of symbol and value.
fn read_attributes(mut bytes: &[u8], attributes: &mut BTreeMap<(u8, u32), u32>) {
    while let [format, kind, low, high, rest @ ..] = bytes {
        let size = match *format {
            SIZED => usize::from(u16::from_le_bytes([*low, *high])),
            _ => 0,
        };
        let Some((value, after)) = rest.split_at_checked(size) else {
            return;
        };
        if let (8, Some(symbol), Some(number)) = (size, u32_at(value, 0), u32_at(value, 4)) {
            attributes.insert((*kind, symbol), number);
        }
        bytes = after;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn text_at(bytes: &[u8], at: usize) -> Option<&str> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_machine_code_is_refused_and_never_read_past_its_end() {
        assert!(Cubin::read(b".version 8.8").is_err());
        let mut image = b"\x7fELF\x02\x01".to_vec();
        image.resize(64, 0xff);
        assert!(Cubin::read(&image).is_err());
    }

    #[test]
    fn attributes_are_pairs_of_symbol_and_value() {
        let mut bytes = vec![4, ATTRIBUTE_REGISTERS, 8, 0];
        bytes.extend([3, 0, 0, 0, 96, 0, 0, 0]);
        // An attribute with its value in the head, then one that is cut off.
        bytes.extend([3, 0x1b, 0xff, 0, 4, ATTRIBUTE_FRAME, 8, 0, 1]);
        let mut attributes = BTreeMap::new();
        read_attributes(&bytes, &mut attributes);
        assert_eq!(attributes, BTreeMap::from([((ATTRIBUTE_REGISTERS, 3), 96)]));
    }
}
