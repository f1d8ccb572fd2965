import Dispatch

@testable import Coroutine

// A dump of everything holds each live job for a moment, those of other tests too. A test that counts on the release of
// its own job must not wait for that, so dumps of everything belong in exit tests.

/// The dump of the coroutines of the queue that the caller runs on.
func dumpOfOwnQueue() -> String { Dump.text(of: [QueueHost.current.unsafelyUnwrapped]) }

/// The dump of the coroutines of `queue`.
func dump(of queue: DispatchQueue) -> String { Dump.text(of: [QueueHost.scheduler(for: queue)]) }
