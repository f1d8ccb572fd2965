// epoll-peer copy: copies between two connections by splice.
#pragma once

// Runs the loop with a listener; does not return.
_Noreturn void run_copies(int listener);
// Ends the process with errno and status 2.
_Noreturn void fail(const char *what);
