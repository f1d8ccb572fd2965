import Dispatch
import Glibc

@testable import Coroutine

// How tests drive coroutines. Test functions are asynchronous and await `Job.value`: that holds no thread. What must
// block (`Job.blockingWait`, semaphores) does so on a thread of its own, never on the cooperative pool, which has few.

/// Runs `body` in a coroutine on `queue`, else on the shared scheduler.
func onCoroutine<Output: Sendable>(
  on queue: DispatchQueue? = nil,
  _ body: sending @escaping () throws -> Output
) async throws -> Output {
  try await co_launch(on: queue, body).value
}

/// Runs `body` in a coroutine on a fresh serial queue, which all that it launches shares: there, order is certain.
///
/// After a `co_yield` everything launched before it has run up to its first suspension.
func onSerialQueue<Output: Sendable>(_ body: sending @escaping () throws -> Output) async throws -> Output {
  try await onCoroutine(on: taggedQueue("serial"), body)
}

/// Launches `body` on the queue of the running coroutine, and lets it run up to its first suspension: a serial queue's.
func launchAndPark<Output: Sendable>(_ body: sending @escaping () throws -> Output) throws -> Job<Output> {
  let job = co_launch(body)
  try co_yield()
  return job
}

/// Suspends a Task until a thread of its own has resumed it.
func resumedElsewhere() async {
  await withCheckedContinuation { continuation in startThread { continuation.resume() } }
}

/// Returns a separate pool of workers, two unless said otherwise, for a test that blocks one of them.
///
/// The pool lives for ever, as the shared one does.
func ownWorkers(_ label: String, count: Int = 2, spareRest: UInt64 = 10_000_000_000) -> WorkerPool {
  let pool = WorkerPool(count: count, label: "coroutine.tests.\(label)", spareRest: spareRest)
  return Unmanaged.passRetained(pool).takeUnretainedValue()
}

/// Calls `body` as synchronous code, which may block, in an async function: the body of an exit test is one.
func synchronously<Output>(_ body: () throws -> Output) rethrows -> Output { try body() }

private let queueTag = DispatchSpecificKey<String>()

/// A queue, serial unless told otherwise, on which `currentTag` is `tag`.
func taggedQueue(_ tag: String, attributes: DispatchQueue.Attributes = []) -> DispatchQueue {
  let queue = DispatchQueue(label: "coroutine.tests.\(tag)", attributes: attributes)
  queue.setSpecific(key: queueTag, value: tag)
  return queue
}

/// The tag of the queue that runs the caller; nil on none of the tests'.
var currentTag: String? { DispatchQueue.getSpecific(key: queueTag) }

/// Runs `body` on a thread of its own, where it may block, and suspends until its end.
@discardableResult
func onOwnThread<Output: Sendable>(_ body: sending @escaping () throws -> Output) async throws -> Output {
  let end = Promise<Output>()
  startThread {
    do {
      end.fulfill(try body())
    } catch {
      end.reject(error)
    }
  }
  return try await onCoroutine { try co_await(end) }
}

/// Starts a detached thread: neither the cooperative pool's nor a dispatch queue's.
func startThread(_ body: sending @escaping () -> Void) {
  final class Start {
    let body: () -> Void
    init(_ body: @escaping () -> Void) { self.body = body }
  }
  let start = Unmanaged.passRetained(Start(body)).toOpaque()
  var thread = pthread_t()
  let code = pthread_create(
    &thread,
    nil,
    { start in
      guard let start else { return nil }
      Unmanaged<Start>.fromOpaque(start).takeRetainedValue().body()
      return nil
    },
    start
  )
  precondition(code == 0, "No thread for the test: pthread_create answers \(code).")
  pthread_detach(thread)
}

/// Runs `body` as a plain block of `queue`, outside any coroutine.
func onBlock<Output: Sendable>(
  of queue: DispatchQueue,
  _ body: @escaping @Sendable () throws -> Output
) async throws -> Output {
  let end = Promise<Output>()
  queue.async {
    do {
      end.fulfill(try body())
    } catch {
      end.reject(error)
    }
  }
  return try await onCoroutine { try co_await(end) }
}
