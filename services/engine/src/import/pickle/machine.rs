//! The stack machine that a pickle is a program for: a closed list of opcodes, and nothing is called.

use std::collections::HashMap;

use super::{Id, VALUES_MAX, Value};

/// Names no file of weights has a use for. Nothing here is ever called; a stream that wants one means harm.
const HARMFUL_MODULES: [&str; 17] = [
    "os",
    "posix",
    "nt",
    "subprocess",
    "sys",
    "socket",
    "shutil",
    "runpy",
    "importlib",
    "ctypes",
    "pty",
    "code",
    "commands",
    "webbrowser",
    "asyncio",
    "multiprocessing",
    "pickle",
];
const HARMFUL_BUILTINS: [&str; 7] = [
    "eval",
    "exec",
    "compile",
    "open",
    "__import__",
    "breakpoint",
    "input",
];

/// The machine between two opcodes.
pub struct Machine<'a> {
    bytes: &'a [u8],
    pub at: usize,
    pub values: Vec<Value>,
    stack: Vec<Id>,
    /// Heights of the stack at each mark.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

impl<'a> Machine<'a> {
    /// Starts before the first opcode.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        }
    }

    /// Runs one opcode. Returns the stream's value at its end.
    pub fn step(&mut self) -> Result<Option<Id>, String> {
        let opcode = self.byte()?;
        match opcode {
            b'.' => return self.pop().map(Some),
            0x80 => {
                let protocol = self.byte()?;
                if protocol > 5 {
                    return Err(format!("protocol {protocol} is not known"));
                }
            }
            // A frame only groups what follows.
            0x95 => {
                self.take(8)?;
            }
            b'(' => self.marks.push(self.stack.len()),
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.above_mark()?;
            }
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'I' | b'L' | b'K' | b'M' | b'J' | 0x8a | 0x8b => {
                let value = self.whole(opcode)?;
                self.push(value)?;
            }
            b'F' => {
                let line = self.line()?;
                let number = line.parse().map_err(|_| format!("'{line}' is no number"))?;
                self.push(Value::Float(number))?;
            }
            b'G' => {
                let number = f64::from_be_bytes(self.array()?);
                self.push(Value::Float(number))?;
            }
            b'X' | 0x8c | 0x8d | b'V' | b'T' | b'U' | b'S' => {
                let text = self.string(opcode)?;
                self.push(Value::Text(text))?;
            }
            b'B' | b'C' | 0x8e => {
                let length = match opcode {
                    b'B' => u64::from(u32::from_le_bytes(self.array()?)),
                    b'C' => u64::from(self.byte()?),
                    _ => u64::from_le_bytes(self.array()?),
                };
                let bytes = self.take(length)?.to_vec();
                self.push(Value::Bytes(bytes))?;
            }
            b']' => self.push(Value::List(Vec::new()))?,
            b')' => self.push(Value::Tuple(Vec::new()))?,
            b'}' => self.push(Value::Dict(Vec::new()))?,
            0x8f => self.push(Value::Set(Vec::new()))?,
            b'l' | b't' | 0x91 => {
                let members = self.above_mark()?;
                self.push(match opcode {
                    b'l' => Value::List(members),
                    b't' => Value::Tuple(members),
                    _ => Value::Set(members),
                })?;
            }
            b'd' => {
                let entries = pairs(self.above_mark()?)?;
                self.push(Value::Dict(entries))?;
            }
            0x85..=0x87 => {
                let mut members = vec![Id(0); usize::from(opcode - 0x84)];
                for member in members.iter_mut().rev() {
                    *member = self.pop()?;
                }
                self.push(Value::Tuple(members))?;
            }
            b'a' => {
                let member = self.pop()?;
                self.extend(vec![member])?;
            }
            b'e' | 0x90 => {
                let members = self.above_mark()?;
                self.extend(members)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.insert(vec![(key, value)])?;
            }
            b'u' => {
                let entries = pairs(self.above_mark()?)?;
                self.insert(entries)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Some(module), Some(name)) = (self.text(module), self.text(name)) else {
                    return Err("a global's module and name are text".into());
                };
                self.global(module, name)?;
            }
            b'R' | 0x81 => {
                let (arguments, class) = (self.pop()?, self.pop()?);
                self.object(class, arguments)?;
            }
            0x92 => {
                // Arguments by name are of no use to anyone here.
                let (_, arguments, class) = (self.pop()?, self.pop()?, self.pop()?);
                self.object(class, arguments)?;
            }
            b'b' => {
                let given = self.pop()?;
                let object = self.top()?;
                match &mut self.values[object.0 as usize] {
                    Value::Object { state, .. } => *state = Some(given),
                    _ => return Err("only an object has a state".into()),
                }
            }
            b'Q' => {
                let name = self.pop()?;
                self.push(Value::Persistent(name))?;
            }
            b'g' | b'h' | b'j' => {
                let index = self.memo_index(opcode)?;
                let known = self.memo.get(&index).copied();
                self.stack
                    .push(known.ok_or_else(|| format!("nothing is remembered as {index}"))?);
            }
            b'p' | b'q' | b'r' => {
                let index = self.memo_index(opcode)?;
                let top = self.top()?;
                self.memo.insert(index, top);
            }
            0x94 => {
                let top = self.top()?;
                self.memo.insert(self.memo.len() as u64, top);
            }
            other => {
                return Err(format!(
                    "opcode 0x{other:02x} has no place in a file of weights"
                ));
            }
        }
        Ok(None)
    }

    fn push(&mut self, value: Value) -> Result<(), String> {
        if self.values.len() >= VALUES_MAX {
            return Err(format!("there are more than {VALUES_MAX} values"));
        }
        let id = u32::try_from(self.values.len()).map_err(|error| error.to_string())?;
        self.values.push(value);
        self.stack.push(Id(id));
        Ok(())
    }

    /// Takes what lies on top, which belongs to the last mark or to nothing.
    fn pop(&mut self) -> Result<Id, String> {
        if self
            .marks
            .last()
            .is_some_and(|&mark| mark >= self.stack.len())
        {
            return Err("a mark lies where a value is wanted".into());
        }
        self.stack
            .pop()
            .ok_or_else(|| "the stack is empty".to_owned())
    }

    fn top(&self) -> Result<Id, String> {
        self.stack
            .last()
            .copied()
            .ok_or_else(|| "the stack is empty".to_owned())
    }

    fn above_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or("there is no mark")?;
        Ok(self.stack.split_off(mark))
    }

    fn extend(&mut self, added: Vec<Id>) -> Result<(), String> {
        let target = self.top()?;
        match &mut self.values[target.0 as usize] {
            Value::List(members) | Value::Set(members) => members.extend(added),
            Value::Object { elements, .. } => elements.extend(added),
            _ => return Err("only a list or a set is added to".into()),
        }
        Ok(())
    }

    fn insert(&mut self, added: Vec<(Id, Id)>) -> Result<(), String> {
        let target = self.top()?;
        match &mut self.values[target.0 as usize] {
            Value::Dict(items) | Value::Object { items, .. } => items.extend(added),
            _ => return Err("only a dictionary has entries".into()),
        }
        Ok(())
    }

    fn global(&mut self, module: String, name: String) -> Result<(), String> {
        let root = module.split('.').next().unwrap_or_default();
        let is_builtin = matches!(root, "builtins" | "__builtin__");
        if HARMFUL_MODULES.contains(&root)
            || (is_builtin && HARMFUL_BUILTINS.contains(&name.as_str()))
        {
            return Err(format!(
                "it asks for {module}.{name}: this file is made to run a program and not to hold weights"
            ));
        }
        self.push(Value::Global { module, name })
    }

    fn object(&mut self, class: Id, arguments: Id) -> Result<(), String> {
        self.push(Value::Object {
            class,
            arguments,
            state: None,
            items: Vec::new(),
            elements: Vec::new(),
        })
    }

    fn text(&self, id: Id) -> Option<String> {
        match &self.values[id.0 as usize] {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    fn memo_index(&mut self, opcode: u8) -> Result<u64, String> {
        match opcode {
            b'h' | b'q' => Ok(u64::from(self.byte()?)),
            b'j' | b'r' => Ok(u64::from(u32::from_le_bytes(self.array()?))),
            _ => {
                let line = self.line()?;
                line.parse().map_err(|_| format!("'{line}' is no index"))
            }
        }
    }

    fn whole(&mut self, opcode: u8) -> Result<Value, String> {
        let number = match opcode {
            b'K' => i64::from(self.byte()?),
            b'M' => i64::from(u16::from_le_bytes(self.array()?)),
            b'J' => i64::from(i32::from_le_bytes(self.array()?)),
            b'I' | b'L' => {
                let line = self.line()?;
                match line.as_str() {
                    "00" => return Ok(Value::Bool(false)),
                    "01" => return Ok(Value::Bool(true)),
                    text => {
                        let digits = text.trim_end_matches('L');
                        digits
                            .parse()
                            .map_err(|_| format!("'{text}' is no whole number of 64 bits"))?
                    }
                }
            }
            _ => {
                let length = match opcode {
                    0x8a => u64::from(self.byte()?),
                    _ => u64::from(u32::from_le_bytes(self.array()?)),
                };
                let bytes = self.take(length)?;
                if bytes.len() > 8 {
                    return Ok(Value::BigInt);
                }
                // Little endian, two's complement: the last byte's sign fills what is missing.
                let is_negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
                let mut whole = [if is_negative { 0xff } else { 0 }; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                i64::from_le_bytes(whole)
            }
        };
        Ok(Value::Int(number))
    }

    fn string(&mut self, opcode: u8) -> Result<String, String> {
        if matches!(opcode, b'V' | b'S') {
            return self.line();
        }
        let length = match opcode {
            b'X' => u64::from(u32::from_le_bytes(self.array()?)),
            b'T' => u64::from(u32::from_le_bytes(self.array()?)),
            0x8d => u64::from_le_bytes(self.array()?),
            _ => u64::from(self.byte()?),
        };
        let bytes = self.take(length)?;
        // Strings of Python 2 have no encoding; lone surrogates have no UTF-8. Names are plain in both.
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    fn line(&mut self) -> Result<String, String> {
        let rest = &self.bytes[self.at..];
        let length = rest
            .iter()
            .position(|&byte| byte == b'\n')
            .ok_or("the stream ends inside a line")?;
        self.at += length + 1;
        Ok(String::from_utf8_lossy(&rest[..length]).into_owned())
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.array::<1>()?[0])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (head, _) = self.bytes[self.at..]
            .split_first_chunk::<N>()
            .ok_or("the stream ends early")?;
        self.at += N;
        Ok(*head)
    }

    fn take(&mut self, length: u64) -> Result<&[u8], String> {
        let rest = &self.bytes[self.at..];
        let length = usize::try_from(length)
            .ok()
            .filter(|&length| length <= rest.len())
            .ok_or_else(|| format!("{length} bytes are announced, {} are left", rest.len()))?;
        self.at += length;
        Ok(&rest[..length])
    }
}

fn pairs(members: Vec<Id>) -> Result<Vec<(Id, Id)>, String> {
    let (entries, rest) = members.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("a key has no value".into());
    }
    Ok(entries.iter().map(|&[key, value]| (key, value)).collect())
}
