//! CUDA, loaded at run time: the only crate that names cudarc.
//!
//! A machine without an NVIDIA driver is a normal machine: [`probe`] says so, and the CPU path serves.

use cudarc::driver::{result, sys};

/// A CUDA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number, as CUDA counts.
    pub ordinal: i32,
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub memory: u64,
}

/// Why no CUDA device can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The driver library `libcuda` cannot be loaded.
    #[error("no NVIDIA driver is installed (libcuda cannot be loaded)")]
    NoDriver,
    /// The driver is there but answers with an error.
    #[error("the NVIDIA driver cannot be used: {0}")]
    Driver(String),
}

impl From<result::DriverError> for GpuError {
    fn from(error: result::DriverError) -> Self {
        Self::Driver(error.to_string())
    }
}

/// The CUDA devices of this machine.
///
/// # Errors
///
/// [`GpuError::NoDriver`] on a machine without the driver; [`GpuError::Driver`] if the driver finds no device or fails.
pub fn probe() -> Result<Vec<DeviceInfo>, GpuError> {
    // SAFETY: only looks for the shared library; asked first because every other call panics without it.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuError::NoDriver);
    }
    result::init()?;
    (0..result::device::get_count()?)
        .map(|ordinal| {
            let device = result::device::get(ordinal)?;
            Ok(DeviceInfo {
                ordinal,
                name: result::device::get_name(device)?,
                // SAFETY: `device` came from the driver just now.
                memory: unsafe { result::device::total_mem(device)? } as u64,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_is_told_so_and_nothing_panics() {
        match probe() {
            Ok(devices) => assert!(devices.iter().all(|d| d.memory > 0 && !d.name.is_empty())),
            Err(error) => assert!(error.to_string().contains("NVIDIA")),
        }
    }
}
