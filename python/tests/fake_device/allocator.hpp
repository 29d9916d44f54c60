// Memory of the fake devices, kept for reuse as PyTorch's caching allocator keeps it: at once, by the stream that it was made on,
// unless another stream was said to use it. So what a call reads or writes after its tensors are gone, and nobody was told, is another tensor's.
#pragma once

#include "driver.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/Event.h>

#include <list>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

namespace fake {

// The thread's device, and its stream of it; the guard's.
c10::DeviceIndex current_device();
c10::StreamId current_stream();

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const auto index = current_device();
    const std::lock_guard lock(mutex_);
    take_in();
    const auto size = (bytes + 511) / 512 * 512;
    const auto stream = current_stream();
    auto& free = free_[{index, stream, size}];
    Block* block = nullptr;
    if (!free.empty()) {
      block = free.back();
      free.pop_back();
    } else if (size > 0) {
      const On on(index);
      block = new Block{0, size, index, stream, {}};
      call("cuMemAlloc_v2", &block->at, size);
    }
    void* const data = block == nullptr ? nullptr : reinterpret_cast<void*>(block->at);
    return {data, block, release, {c10::kCUDA, index}};
  }

  void record(const c10::DataPtr& data, const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    if (data.get_context() != nullptr && data.get_deleter() == release) {
      static_cast<Block*>(data.get_context())->users.insert(stream.id());
    }
  }

  void collect() {
    const std::lock_guard lock(mutex_);
    take_in();
  }

  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "the fake devices' allocator copies nothing");
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return release;
  }

 private:
  struct Block {
    Address at;
    size_t size;
    c10::DeviceIndex device;
    c10::StreamId stream;
    std::set<c10::StreamId> users;
  };
  struct Waiting {
    Block* block;
    std::vector<c10::Event> ends;
  };

  static void release(void* context);

  void take_back(Block* block) {
    const std::lock_guard lock(mutex_);
    Waiting waiting{block, {}};
    for (const auto id : block->users) {
      waiting.ends.emplace_back(c10::kCUDA);
      waiting.ends.back().record(c10::Stream(c10::Stream::UNSAFE, {c10::kCUDA, block->device}, id));
    }
    block->users.clear();
    waiting_.push_back(std::move(waiting));
    take_in();
  }

  // What nobody uses any more.
  void take_in() {
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      bool is_over = true;
      for (const auto& end : it->ends) {
        is_over = is_over && end.query();
      }
      if (is_over) {
        free_[{it->block->device, it->block->stream, it->block->size}].push_back(it->block);
        it = waiting_.erase(it);
      } else {
        ++it;
      }
    }
  }

  std::mutex mutex_;
  std::map<std::tuple<c10::DeviceIndex, c10::StreamId, size_t>, std::vector<Block*>> free_;
  std::list<Waiting> waiting_;
};

inline Allocator& allocator() {
  static auto* const made = new Allocator();
  return *made;
}

inline void Allocator::release(void* context) {
  if (context == nullptr) {
    return;
  }
  try {
    allocator().take_back(static_cast<Block*>(context));
  } catch (const c10::Error&) {
    // Of a device that has failed: its memory is nobody's any more.
  }
}

}  // namespace fake
