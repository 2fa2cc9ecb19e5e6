//! Reads Python's pickle format, protocols 0 to 5 as far as weights need them, without running anything: what a
//! program would call or build stays a description of the call. Opcodes as in the standard library's `pickletools`.
//!
//! Values lie in one list and refer to each other by number, so depth costs no stack and sharing no copies.

mod machine;

use machine::Machine;

/// The longest stream that is read.
pub const BYTES_MAX: usize = 256 << 20;
/// The most values of one stream.
pub const VALUES_MAX: usize = 8 << 20;

/// A value's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id(u32);

/// A value of a pickle.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// A whole number of more than 64 bits.
    BigInt,
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Set(Vec<Id>),
    /// In the order of insertion; of equal keys the last one counts.
    Dict(Vec<(Id, Id)>),
    Global {
        module: String,
        name: String,
    },
    /// What calling `class` with `arguments` would have made, with what was put into it afterwards.
    Object {
        class: Id,
        arguments: Id,
        state: Option<Id>,
        items: Vec<(Id, Id)>,
        elements: Vec<Id>,
    },
    /// Something that lies outside the stream.
    Persistent(Id),
}

/// All values of a stream and which one it stands for.
#[derive(Debug, Clone, PartialEq)]
pub struct Pickle {
    values: Vec<Value>,
    pub root: Id,
}

impl Pickle {
    /// Reads a stream, or says what is wrong and where.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > BYTES_MAX {
            return Err(format!(
                "it is {} bytes long, {BYTES_MAX} are read at most",
                bytes.len()
            ));
        }
        let mut machine = Machine::new(bytes);
        loop {
            let opcode_at = machine.at;
            let stop = machine
                .step()
                .map_err(|rule| format!("byte {opcode_at}: {rule}"))?;
            if let Some(root) = stop {
                return Ok(Self {
                    values: machine.values,
                    root,
                });
            }
        }
    }

    /// Returns a value.
    pub fn value(&self, id: Id) -> &Value {
        &self.values[id.0 as usize]
    }

    /// Returns a value that is text.
    pub fn text(&self, id: Id) -> Option<&str> {
        match self.value(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns a value that is a whole number.
    pub fn int(&self, id: Id) -> Option<i64> {
        match self.value(id) {
            Value::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns module and name of a global.
    pub fn global(&self, id: Id) -> Option<(&str, &str)> {
        match self.value(id) {
            Value::Global { module, name } => Some((module, name)),
            _ => None,
        }
    }

    /// Returns the members of a tuple or list.
    pub fn members(&self, id: Id) -> Option<&[Id]> {
        match self.value(id) {
            Value::Tuple(members) | Value::List(members) => Some(members),
            _ => None,
        }
    }

    /// Returns the entries of a dictionary, or of an object that is one (`OrderedDict`).
    pub fn entries(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.value(id) {
            Value::Dict(items) => Some(items),
            Value::Object { items, class, .. }
                if !items.is_empty()
                    || self.global(*class) == Some(("collections", "OrderedDict")) =>
            {
                Some(items)
            }
            _ => None,
        }
    }

    /// Returns the value of a text key of a dictionary.
    pub fn get(&self, id: Id, key: &str) -> Option<Id> {
        let entries = self.entries(id)?;
        let found = entries
            .iter()
            .rev()
            .find(|(name, _)| self.text(*name) == Some(key));
        found.map(|&(_, value)| value)
    }

    /// Returns an attribute of an object: what its state dictionary holds.
    pub fn attribute(&self, id: Id, name: &str) -> Option<Id> {
        match self.value(id) {
            Value::Object {
                state: Some(state), ..
            } => self.get(*state, name),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(bytes: &[u8]) -> String {
        Pickle::read(bytes).unwrap_err()
    }

    #[test]
    fn containers_numbers_and_text_are_read() {
        // pickle.dumps({"a": [1, -2, 300, 70000, 2.5], "b": (True, None, 1 << 40)}, protocol=2)
        let bytes = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\
            G@\x04\x00\x00\x00\x00\x00\x00eX\x01\x00\x00\x00bq\x03\x88N\x8a\x06\x00\x00\x00\x00\x00\x01\x87q\x04u.";
        let pickle = Pickle::read(bytes).unwrap();
        let list = pickle
            .members(pickle.get(pickle.root, "a").unwrap())
            .unwrap();
        let whole: Vec<_> = list.iter().map(|&id| pickle.int(id)).collect();
        assert_eq!(whole, [Some(1), Some(-2), Some(300), Some(70_000), None]);
        assert_eq!(*pickle.value(list[4]), Value::Float(2.5));
        let tuple = pickle
            .members(pickle.get(pickle.root, "b").unwrap())
            .unwrap();
        assert_eq!(*pickle.value(tuple[0]), Value::Bool(true));
        assert_eq!(pickle.int(tuple[2]), Some(1 << 40));
    }

    #[test]
    fn a_shared_container_is_seen_as_it_became() {
        // A list is remembered, put into a tuple twice, then filled.
        let pickle = Pickle::read(b"]q\x00h\x00\x86h\x00K\x07a0.").unwrap();
        let both = pickle.members(pickle.root).unwrap();
        assert_eq!(both[0], both[1]);
        assert_eq!(pickle.int(pickle.members(both[0]).unwrap()[0]), Some(7));
    }

    #[test]
    fn what_would_be_called_is_described_and_never_called() {
        let pickle = Pickle::read(b"cmodule\nThing\n)\x81}X\x01\x00\x00\x00xK\x05sb.").unwrap();
        let x = pickle.attribute(pickle.root, "x").unwrap();
        assert_eq!(pickle.int(x), Some(5));
        for hostile in [
            &b"cos\nsystem\nX\x04\x00\x00\x00true\x85R."[..],
            b"cposix\nsystem\n.",
            b"c__builtin__\neval\n.",
            b"\x8c\x0asubprocess\x8c\x05Popen\x93.",
        ] {
            assert!(error(hostile).contains("made to run a program"));
        }
    }

    #[test]
    fn a_large_memory_number_costs_one_entry() {
        let pickle = Pickle::read(b"K\x07r\xff\xff\xff\xff0j\xff\xff\xff\xff.").unwrap();
        assert_eq!(pickle.int(pickle.root), Some(7));
    }

    #[test]
    fn deep_nesting_costs_no_stack() {
        let mut bytes = vec![b']'; 1_000_000];
        bytes.extend(vec![b'a'; 999_999]);
        bytes.push(b'.');
        assert!(Pickle::read(&bytes).is_ok());
    }

    #[test]
    fn malformed_streams_are_refused_where_they_break() {
        for (bytes, words) in [
            (&b""[..], "byte 0: the stream ends early"),
            (b"K", "byte 0: the stream ends early"),
            (b".", "the stack is empty"),
            (b"(.", "byte 1: a mark lies where a value is wanted"),
            (b"e.", "there is no mark"),
            (b"h\x05.", "nothing is remembered as 5"),
            (
                b"X\xff\xff\xff\x7fab.",
                "2147483647 bytes are announced, 3 are left",
            ),
            (
                b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffab.",
                "bytes are announced",
            ),
            (b"(K\x01d.", "a key has no value"),
            (b"K\x01K\x02a.", "only a list or a set is added to"),
            (b"\x80\x09.", "protocol 9"),
            (b"\x82\x01.", "opcode 0x82"),
            (b"cmodule", "ends inside a line"),
            (b"K\x01Nb.", "only an object has a state"),
        ] {
            let error = error(bytes);
            assert!(error.contains(words), "{error} should say {words}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(0u8.., 0..200)) {
            let _ = Pickle::read(&bytes);
        }
    }
}
