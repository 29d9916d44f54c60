"""Compiles modules with NVRTC: nvrtc.py FOLDER-OF-THE-LIBRARY ARCHITECTURE, and on standard input lines of
"output source family". Sources and what they include are taken from the current folder."""

import ctypes
import glob
import sys


def library(folder, name):
    (path,) = [p for p in glob.glob(f"{folder}/{name}.so.*") if ".alt." not in p]
    return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def compiled(nvrtc, source, options):
    program = ctypes.c_void_p()
    with open(source, "rb") as file:
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), file.read(), source.encode(), 0, None, None)
    words = [option.encode() for option in options]
    failed = nvrtc.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))

    def text(size, get):
        length = ctypes.c_size_t()
        size(program, ctypes.byref(length))
        buffer = ctypes.create_string_buffer(length.value)
        get(program, buffer)
        return buffer.value.decode()

    log = text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    if failed or "warning" in log:
        sys.exit(f"{source}: {log}")
    ptx = text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx


def main():
    folder, architecture = sys.argv[1:]
    # NVRTC looks for this one by its bare name, where no loader would find it.
    library(folder, "libnvrtc-builtins")
    nvrtc = library(folder, "libnvrtc")
    for line in sys.stdin:
        output, source, family = line.split()
        options = [f"--gpu-architecture={architecture}", "--std=c++14", "-I.", f"-DFAMILY={family}"]
        with open(output, "w") as file:
            file.write(compiled(nvrtc, source, options))


main()
