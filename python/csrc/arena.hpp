// Blocks of one run of memory.
#pragma once

#include <cstddef>
#include <map>

namespace rdmaccl {

// Gives out the shortest free run that is long enough, and joins freed neighbours. Not for several threads at once.
class Arena {
 public:
  Arena(std::byte* base, size_t bytes);

  // Of whole pages; none if no free run is as long.
  void* take(size_t bytes);

  void give(void* block);

  bool holds(const void* at) const {
    return at >= base_ && at < base_ + bytes_;
  }

  bool empty() const {
    return used_.empty();
  }

  void* base() const {
    return base_;
  }

  size_t bytes() const {
    return bytes_;
  }

  size_t used() const;

  // As many bytes as a block of so many takes.
  static constexpr size_t whole(size_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
  }

 private:
  static constexpr size_t PAGE = 4096;

  // Lengths, by where they begin.
  using Runs = std::map<std::byte*, size_t>;

  std::byte* const base_;
  const size_t bytes_;
  Runs free_;
  Runs used_;
};

}  // namespace rdmaccl
