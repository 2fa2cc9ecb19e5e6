//! Writes pickles as `torch.save` does, protocol 2.

pub fn text(text: &str) -> Vec<u8> {
    [
        b"X",
        &(text.len() as u32).to_le_bytes()[..],
        text.as_bytes(),
    ]
    .concat()
}

pub fn int(number: i32) -> Vec<u8> {
    [b"J", &number.to_le_bytes()[..]].concat()
}

pub fn global(module: &str, name: &str) -> Vec<u8> {
    format!("c{module}\n{name}\n").into_bytes()
}

pub fn tuple(members: &[Vec<u8>]) -> Vec<u8> {
    [b"(", &members.concat()[..], b"t"].concat()
}

pub fn ints(numbers: &[usize]) -> Vec<u8> {
    let numbers: Vec<_> = numbers.iter().map(|&number| int(number as i32)).collect();
    tuple(&numbers)
}

pub fn call(function: Vec<u8>, arguments: &[Vec<u8>]) -> Vec<u8> {
    [function, tuple(arguments), b"R".to_vec()].concat()
}

pub fn entries(pairs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let pairs = pairs
        .iter()
        .map(|(key, value)| [text(key), value.clone()].concat());
    [b"(", &pairs.collect::<Vec<_>>().concat()[..], b"u"].concat()
}

pub fn dict(pairs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    [b"}", &entries(pairs)[..]].concat()
}

pub fn ordered(pairs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    [
        call(global("collections", "OrderedDict"), &[]),
        entries(pairs),
    ]
    .concat()
}

/// A tensor in the storage `key` of `count` numbers.
pub fn tensor(class: &str, key: &str, count: usize, place: [&[usize]; 3]) -> Vec<u8> {
    let storage = [
        text("storage"),
        global("torch", class),
        text(key),
        text("cpu"),
        int(count as i32),
    ];
    let [offset, shape, strides] = place;
    let arguments = [
        [tuple(&storage), b"Q".to_vec()].concat(),
        int(offset[0] as i32),
        ints(shape),
        ints(strides),
        b"\x89".to_vec(),
        ordered(&[]),
    ];
    call(global("torch._utils", "_rebuild_tensor_v2"), &arguments)
}

/// A tensor that fills its storage.
pub fn dense(class: &str, key: &str, shape: &[usize]) -> Vec<u8> {
    let mut strides = vec![1; shape.len()];
    for side in (1..shape.len()).rev() {
        strides[side - 1] = strides[side] * shape[side];
    }
    tensor(class, key, shape.iter().product(), [&[0], shape, &strides])
}

pub fn parameter(data: Vec<u8>) -> Vec<u8> {
    let function = global("torch._utils", "_rebuild_parameter");
    call(function, &[data, b"\x88".to_vec(), ordered(&[])])
}

/// A module of a class nobody has heard of.
pub fn module(
    parameters: &[(&str, Vec<u8>)],
    modules: &[(&str, Vec<u8>)],
    more: &[(&str, Vec<u8>)],
) -> Vec<u8> {
    let mut state = vec![
        ("training", b"\x89".to_vec()),
        ("_parameters", ordered(parameters)),
        (
            "_buffers",
            ordered(&[("num_batches_tracked", b"N".to_vec())]),
        ),
        ("_modules", ordered(modules)),
    ];
    state.extend_from_slice(more);
    let class = global("some.package", "Block");
    [class, b")\x81".to_vec(), dict(&state), b"b".to_vec()].concat()
}

pub fn stream(value: Vec<u8>) -> Vec<u8> {
    [b"\x80\x02", &value[..], b"."].concat()
}
