"""A few instructions in a virtual machine of its own: `python -I kvm_probe.py` says in one line how they went.

/dev/kvm may open and answer, and yet run no guest, for example in nested clouds. Whoever calls this bounds its time,
because such a machine may also hang. It imports nothing but the standard library.
"""

import ctypes
import fcntl
import mmap
import os
import struct
import sys
from pathlib import Path

CREATE_VM, CREATE_VCPU, VCPU_MMAP_SIZE, RUN = 0xAE01, 0xAE41, 0xAE04, 0xAE80
SET_USER_MEMORY_REGION, GET_SREGS, SET_SREGS, SET_REGS = 0x4020AE46, 0x8138AE83, 0x4138AE84, 0x4090AE82
"""Requests of <linux/kvm.h>."""
EXIT_IO = 2

MEMORY_BYTES = 2 * 2**20
TABLES, CODE = 0x1000, 0x8000
PRESENT_WRITABLE, HUGE = 3, 0x80
PROGRAM = bytes.fromhex(
    "b9 40 42 0f 00"  # mov ecx, 1000000
    "ff c9"  # dec ecx
    "75 fc"  # jnz to the dec
    "c7 04 25 00 90 00 00 2a 00 00 00"  # mov dword [0x9000], 42
    "8a 04 25 00 90 00 00"  # mov al, [0x9000]
    "e6 10"  # out 0x10, al
    "f4"  # hlt
)
"""In 64-bit mode with paging, as every guest of today runs."""
ANSWER = 42


def hardware_flag(cpuinfo: str) -> str | None:
    """Return which virtualisation the processor has, `vmx` or `svm`; None where it shows neither."""
    flags = {flag for line in cpuinfo.splitlines() if line.startswith("flags") for flag in line.split()}
    return next((flag for flag in ("vmx", "svm") if flag in flags), None)


def load_program(memory: mmap.mmap) -> None:
    """Write page tables that map the memory onto itself, and the program."""
    for table, entry in ((TABLES, TABLES + 0x1000), (TABLES + 0x1000, TABLES + 0x2000)):
        memory[table : table + 8] = struct.pack("<Q", entry | PRESENT_WRITABLE)
    memory[TABLES + 0x2000 : TABLES + 0x2008] = struct.pack("<Q", PRESENT_WRITABLE | HUGE)
    memory[CODE : CODE + len(PROGRAM)] = PROGRAM


def long_mode(sregs: bytearray) -> None:
    """Set the special registers of a processor that runs 64-bit code."""
    code = struct.pack("<QIH10B", 0, 0xFFFFFFFF, 8, 11, 1, 0, 0, 1, 1, 1, 0, 0, 0)
    data = struct.pack("<QIH10B", 0, 0xFFFFFFFF, 16, 3, 1, 0, 1, 1, 0, 1, 0, 0, 0)
    sregs[0:144] = code + data * 5  # cs, ds, es, fs, gs, ss
    struct.pack_into("<4Q", sregs, 224, 0x80050033, 0, TABLES, 0x20)  # cr0, cr2, cr3, cr4 with physical addresses
    struct.pack_into("<Q", sregs, 264, 0x500)  # efer: long mode, enabled and active


def run_guest() -> tuple[int, int]:
    """Run the program; return why it stopped, and the byte it wrote to port 0x10.

    Raises:
        OSError: If the kernel refuses.
    """
    kvm = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    machine = fcntl.ioctl(kvm, CREATE_VM, 0)
    memory = mmap.mmap(-1, MEMORY_BYTES)
    load_program(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(machine, SET_USER_MEMORY_REGION, struct.pack("<IIQQQ", 0, 0, 0, MEMORY_BYTES, address))
    processor = fcntl.ioctl(machine, CREATE_VCPU, 0)
    shared = mmap.mmap(processor, fcntl.ioctl(kvm, VCPU_MMAP_SIZE, 0))
    sregs = bytearray(312)
    fcntl.ioctl(processor, GET_SREGS, sregs)
    long_mode(sregs)
    fcntl.ioctl(processor, SET_SREGS, bytes(sregs))
    registers = [0] * 18
    registers[16], registers[17] = CODE, 2  # rip, rflags
    fcntl.ioctl(processor, SET_REGS, struct.pack("<18Q", *registers))
    fcntl.ioctl(processor, RUN, 0)
    (reason,) = struct.unpack_from("<I", shared, 8)
    (offset,) = struct.unpack_from("<Q", shared, 40)  # of the data of an EXIT_IO
    return reason, shared[offset] if reason == EXIT_IO and offset < len(shared) else -1


def verdict() -> str:
    """Return `ok`, or why a virtual machine does not run here."""
    processor = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    if hardware_flag(processor) is None:  # small guests run there, and whole systems hang
        return "the processor shows neither vmx nor svm, so this KVM does not boot the systems that OSWorld's disk has"
    try:
        reason, answer = run_guest()
    except OSError as error:
        return f"the kernel refuses a virtual machine: {error}"
    if (reason, answer) != (EXIT_IO, ANSWER):
        return f"a small virtual machine stopped for reason {reason} in place of giving its answer"
    return "ok"


if __name__ == "__main__":
    sys.stdout.write(verdict() + "\n")
