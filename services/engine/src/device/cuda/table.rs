//! All kernels: those of the operations and those of the engine's own rooms.

use crate::ops::cuda::{SOURCES, SURFACE, Source};

/// Files that kernels include, beside `params.h`, which is made from the table.
pub const HEADERS: &[(&str, &str)] = &[
    ("ks.h", SURFACE),
    ("finalize.h", crate::ops::norm::cuda::FINALIZE),
    ("gemm.h", crate::ops::conv2d::cuda::GEMM),
    ("epilogue.h", crate::ops::conv2d::cuda::EPILOGUE),
    ("numbers.h", crate::ops::cuda::NUMBERS),
    ("head.h", crate::loss::cuda::HEAD),
];

/// Returns every file of kernels; rooms of the engine add theirs here.
pub fn sources() -> Vec<Source> {
    let own = [
        crate::loss::cuda::DETECT,
        crate::loss::cuda::CLASSIFY,
        crate::loss::cuda::MASKS,
        crate::optim::cuda::SOURCE,
        crate::optim::cuda::MUON,
        super::control::SOURCE,
        crate::metrics::cuda::SOURCE,
        crate::data::cuda::SOURCE,
        crate::data::augment::cuda::SOURCE,
    ];
    SOURCES.iter().copied().chain(own).collect()
}

/// Returns a hash of all that a pack is made of, so that one made of other kernels is refused.
pub fn sources_hash(sources: &[Source]) -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, text) in HEADERS {
        hasher.update(name.as_bytes()).update(text.as_bytes());
    }
    hasher.update(crate::ops::cuda::header(sources).as_bytes());
    for source in sources {
        hasher
            .update(source.name.as_bytes())
            .update(source.text.as_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}
