// CPU tensors in memory that the ranks of a host map: collectives on them copy nothing through the library's own memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmaccl::shared_memory {

// No tensor is as long.
constexpr size_t NONE = SIZE_MAX;

// From now on, and on all threads, CPU tensors of so many bytes or more lie in such memory; what held before. `NONE` gives
// back what no tensor lies in. A process that is forked off begins with `NONE`.
size_t share_from(size_t bytes);

struct Bytes {
  // Tensors' that live.
  size_t used;
  // Asked of the system; takes memory where it has been touched.
  size_t reserved;
};

Bytes bytes();

}  // namespace rdmaccl::shared_memory
