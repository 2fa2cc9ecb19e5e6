//! The pack that the compiler has made is one that the host code loads.

use std::path::Path;

use engine::device::cuda::control::Poison;
use engine::device::cuda::{ARCHITECTURES, Device, GpuError, Pack, probe, sources, sources_hash};

use crate::bench::{Vector, fake};

/// Returns the pack of `scripts/kernels.sh`, if it was made of these kernels.
fn compiled() -> Option<Pack> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/kernels.pack");
    match Pack::read(&path, &sources_hash(&sources())) {
        Ok(pack) => Some(pack),
        Err(error @ (GpuError::NoPack { .. } | GpuError::PackBroken { .. })) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_kernel_is_in_the_code_for_every_architecture() {
    let Some(pack) = compiled() else { return };
    for architecture in ARCHITECTURES {
        for source in sources() {
            let image = pack.image(source.name, architecture).unwrap();
            let is_ptx = !image.starts_with(b"\x7fELF");
            assert_eq!(
                is_ptx,
                architecture.is_ptx(),
                "{} {}",
                source.name,
                architecture.name
            );
            for kernel in source.kernels {
                let name = kernel.name.as_bytes();
                assert!(
                    image.windows(name.len()).any(|found| found == name),
                    "{} {}",
                    kernel.name,
                    architecture.name
                );
            }
        }
    }
}

#[test]
fn machine_code_loads_and_launches() {
    let Some(pack) = compiled() else { return };
    fake();
    let gpu = probe().unwrap().remove(0);
    // Exact code for the first, PTX for one that is to come.
    for compute in [gpu.compute, (13, 0)] {
        let gpu = engine::device::cuda::Gpu {
            compute,
            ..gpu.clone()
        };
        let device = Device::open(&gpu, &sources(), &pack).unwrap();
        let vector = Vector::of(&device, &[1.0f32]);
        let poison = Poison {
            words: vector.address(),
            count: 1,
            pattern: 2.5f32.to_bits(),
        };
        device.launch("poison", [1, 1, 1], &poison).unwrap();
        assert_eq!(vector.floats(), [2.5]);
    }
}

#[test]
fn a_pack_without_a_kernel_names_it() {
    fake();
    let gpu = probe().unwrap().remove(0);
    let refused = Device::open(&gpu, &sources(), &Pack::default())
        .map(drop)
        .unwrap_err();
    assert!(matches!(refused, GpuError::NoKernel { .. }), "{refused}");
    let mut broken = engine_emulator::pack();
    broken.insert("norm", "sm_90a", b"no machine code".to_vec());
    let refused = Device::open(&gpu, &sources(), &broken)
        .map(drop)
        .unwrap_err();
    assert!(refused.to_string().contains("for sm_90a"), "{refused}");
}
