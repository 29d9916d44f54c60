#include "shared_memory.hpp"

#include "arena.hpp"

#include <ccl.h>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <mutex>
#include <string>

namespace rdmaccl::shared_memory {

namespace {

// A tensor takes its place in memory of this size, or in its own if it is longer: each costs a descriptor, and a mapping
// in every rank.
constexpr size_t SLAB = size_t{1} << 28;

// PyTorch's allocator of CPU tensors, once it was asked for; short tensors and those of other times come from the one before it.
class Allocator final : public at::Allocator {
 public:
  explicit Allocator(at::Allocator* ordinary) : ordinary_(ordinary) {}

  at::DataPtr allocate(size_t bytes) override {
    if (bytes >= minimum_.load(std::memory_order_relaxed)) {
      if (void* block = take(bytes)) {
        c10::profiledCPUMemoryReporter().New(block, bytes);
        return {block, block, &free_shared, at::Device(at::kCPU)};
      }
    }
    return ordinary_->allocate(bytes);
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  at::DeleterFnPtr raw_deleter() const override {
    return ordinary_->raw_deleter() == nullptr ? nullptr : &free_any;
  }

  size_t share_from(size_t bytes) {
    const std::lock_guard guard(lock_);
    const auto before = minimum_.exchange(bytes, std::memory_order_relaxed);
    if (bytes == NONE) {
      release_empty(nullptr);
    }
    return before;
  }

  Bytes bytes() {
    const std::lock_guard guard(lock_);
    Bytes sum{0, 0};
    for (const auto& slab : slabs_) {
      sum.used += slab.used();
      sum.reserved += slab.bytes();
    }
    return sum;
  }

  // No thread is between two states while the process is forked. The slabs are the parent's too: the child must not give their
  // places to its own tensors, and tensors of them that it drops stay mapped.
  void fork_begins() {
    lock_.lock();
  }
  void fork_is_over() {
    lock_.unlock();
  }
  void forked_off() {
    inherited_.splice(inherited_.end(), slabs_);
    minimum_.store(NONE, std::memory_order_relaxed);
    lock_.unlock();
  }

 private:
  void* take(size_t bytes) {
    std::string why;
    {
      const std::lock_guard guard(lock_);
      for (auto& slab : slabs_) {
        if (void* block = slab.take(bytes)) {
          return block;
        }
      }
      void* base = nullptr;
      const auto length = std::max(SLAB, Arena::whole(bytes));
      if (cclMemAlloc(&base, length) == cclSuccess) {
        slabs_.emplace_back(static_cast<std::byte*>(base), length);
        return slabs_.back().take(bytes);
      }
      why = cclGetLastError(nullptr);
    }
    TORCH_WARN_ONCE("rdmaccl: a tensor of ", bytes, " bytes lies in ordinary memory, and so will others: ", why);
    return nullptr;
  }

  // Whether it was ours. One empty slab stays: a program that frees its only tensor soon makes another one.
  bool give(void* block) {
    const std::lock_guard guard(lock_);
    const auto holds = [=](const Arena& slab) { return slab.holds(block); };
    const auto slab = std::find_if(slabs_.begin(), slabs_.end(), holds);
    if (slab == slabs_.end()) {
      return std::any_of(inherited_.begin(), inherited_.end(), holds);
    }
    slab->give(block);
    if (slab->empty()) {
      release_empty(minimum_.load(std::memory_order_relaxed) == NONE ? nullptr : &*slab);
    }
    return true;
  }

  void release_empty(const Arena* but) {
    slabs_.remove_if([=](const Arena& slab) { return slab.empty() && &slab != but && cclMemFree(slab.base()) == cclSuccess; });
  }

  static void free_shared(void* block);
  static void free_any(void* block);

  at::Allocator* const ordinary_;
  std::atomic<size_t> minimum_ = NONE;
  std::mutex lock_;
  std::list<Arena> slabs_;
  std::list<Arena> inherited_;
};

// None before it is first asked for. It stays for ever: tensors may be freed while the process ends.
Allocator* the_allocator = nullptr;

void Allocator::free_shared(void* block) {
  c10::profiledCPUMemoryReporter().Delete(block);
  the_allocator->give(block);
}

void Allocator::free_any(void* block) {
  if (the_allocator->give(block)) {
    c10::profiledCPUMemoryReporter().Delete(block);
  } else {
    the_allocator->ordinary_->raw_deleter()(block);
  }
}

Allocator* install() {
  the_allocator = new Allocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(the_allocator);
  TORCH_CHECK(
      c10::GetCPUAllocator() == the_allocator,
      "rdmaccl: another allocator of CPU tensors was set, and with a priority: tensors cannot be in shared memory beside it");
  const auto failed = pthread_atfork(
      [] { the_allocator->fork_begins(); }, [] { the_allocator->fork_is_over(); }, [] { the_allocator->forked_off(); });
  TORCH_CHECK(failed == 0, "rdmaccl: pthread_atfork: error ", failed);
  return the_allocator;
}

}  // namespace

size_t share_from(size_t bytes) {
  static Allocator* const allocator = install();
  return allocator->share_from(bytes);
}

Bytes bytes() {
  return the_allocator == nullptr ? Bytes{0, 0} : the_allocator->bytes();
}

}  // namespace rdmaccl::shared_memory
