import Coroutine
import Dispatch
import Glibc

/// Runs `body` on `count` threads at once, each a serial queue's own, and suspends until all have ended.
///
/// The threads start together: each waits, awake, until the last has come.
func onThreads(_ count: Int, _ body: @escaping @Sendable (Int) -> Void) async throws {
  let (arrived, ended) = (Census(), Census())
  let end = Promise<Void>()
  for thread in 0..<count {
    DispatchQueue(label: "coroutine.stress.thread \(thread)").async {
      arrived.change()
      while arrived.now < count { sched_yield() }
      body(thread)
      if ended.change() == count { end.fulfill(()) }
    }
  }
  try await co_launch { try co_await(end) }.value
}

/// Serial queues to spread coroutines over.
func queues(_ count: Int) -> [DispatchQueue] {
  (0..<count).map { DispatchQueue(label: "coroutine.stress.\($0)") }
}

/// Suspends until `census` shows `count`, letting other tasks run.
func until(_ census: Census, shows count: Int) async {
  while census.now != count { await Task.yield() }
}

/// The error that stress tests cancel and fail with; it contains the round and the part.
struct Mark: Error, Equatable {
  var number: Int
}

/// Resumers that coroutines have stored, one per slot, for threads to use.
///
/// A slot is written once, by its coroutine before it parks, and read once the board is full.
final class ResumerBoard<Output: Sendable>: @unchecked Sendable {
  // Sound because a slot's writer is its coroutine alone, and readers come after `full` was fulfilled, which the
  // count of those writes allowed, with release and acquire order.
  private let slots: UnsafeMutableBufferPointer<Resumer<Output>?>
  private let laid = Census()
  private let full = Promise<Void>()

  init(_ count: Int) {
    slots = .allocate(capacity: count)
    slots.initialize(repeating: nil)
  }

  deinit {
    slots.deinitialize()
    slots.deallocate()
  }

  func lay(_ resumer: Resumer<Output>, at index: Int) {
    slots[index] = resumer
    if laid.change() == slots.count { full.fulfill(()) }
  }

  /// Suspends until every slot has its resumer.
  func isFull() async throws {
    try await co_launch { [full] in try co_await(full) }.value
  }

  subscript(index: Int) -> Resumer<Output>? { slots[index] }
}
