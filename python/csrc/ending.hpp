// The end of a program that has not destroyed its groups.
//
// A group's threads drop tensors and run continuations when calls are over, and need Python's lock for that. An interpreter that is
// ending ends each thread that asks for the lock, which C++ takes for a reason to end the process. So the groups end first.
#pragma once

#include "process_group.hpp"

#include <string>

namespace rdmaccl::ending {

// The group is shut down at the latest when the program ends.
void enroll(const c10::intrusive_ptr<ProcessGroupRdmaccl>& group);

// Shuts down all groups that are left; aborts those that have calls which are not over after so long, and says which. Without
// Python's lock.
std::vector<std::string> shut_down_all(milliseconds grace);

}  // namespace rdmaccl::ending
