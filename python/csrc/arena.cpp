#include "arena.hpp"

#include <iterator>
#include <numeric>

namespace rdmaccl {

Arena::Arena(std::byte* base, size_t bytes) : base_(base), bytes_(bytes), free_{{base, bytes}} {}

void* Arena::take(size_t bytes) {
  const auto wanted = whole(bytes);
  auto best = free_.end();
  for (auto run = free_.begin(); run != free_.end(); ++run) {
    if (run->second >= wanted && (best == free_.end() || run->second < best->second)) {
      best = run;
    }
  }
  if (best == free_.end()) {
    return nullptr;
  }
  const auto [at, length] = *best;
  free_.erase(best);
  if (length > wanted) {
    free_.emplace(at + wanted, length - wanted);
  }
  used_.emplace(at, wanted);
  return at;
}

void Arena::give(void* block) {
  const auto used = used_.find(static_cast<std::byte*>(block));
  auto run = free_.insert(*used).first;
  used_.erase(used);
  if (const auto next = std::next(run); next != free_.end() && run->first + run->second == next->first) {
    run->second += next->second;
    free_.erase(next);
  }
  if (run != free_.begin()) {
    if (const auto before = std::prev(run); before->first + before->second == run->first) {
      before->second += run->second;
      free_.erase(run);
    }
  }
}

size_t Arena::used() const {
  return std::accumulate(used_.begin(), used_.end(), size_t{0}, [](size_t sum, const auto& run) { return sum + run.second; });
}

}  // namespace rdmaccl
