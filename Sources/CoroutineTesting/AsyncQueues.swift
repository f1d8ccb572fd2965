import CAsyncWorlds

// What async code gives to queues of Dispatch, where its world takes that (World.includeDispatch).
//
// Invariants
//  1. A queue runs its work one at a time, first in, first out; the first one runs, or is a candidate.
//  2. What a caller waits for on a queue, as `DispatchQueue.sync` does, runs after all that the queue has taken. That
//     then runs in the caller's step, and the queue's candidate has nothing left to do, or what comes next.
//  3. The queue is held for each piece of its work, so its address is its own.

/// The work of queues; one thread uses it.
final class AsyncQueues {
  /// The work of each queue that has some, in its order; also that which runs.
  @exclusivity(unchecked) private var queues: [UnsafeMutableRawPointer: [AsyncWork]] = [:]
  /// The queue of each candidate, by its number, until its step ends.
  @exclusivity(unchecked) private var candidates: [UInt64: UnsafeMutableRawPointer] = [:]
  /// The queues whose work runs, innermost last.
  @exclusivity(unchecked) private var running: [UnsafeMutableRawPointer] = []

  func add(_ work: AsyncWork) { queues[work.queue, default: []].append(work) }

  /// Whether a queue has work, and no candidate.
  func needsCandidate(_ queue: UnsafeMutableRawPointer) -> Bool {
    queues[queue] != nil && !candidates.values.contains(queue)
  }

  func listed(_ queue: UnsafeMutableRawPointer, as id: UInt64) { candidates[id] = queue }
  func queue(of id: UInt64) -> UnsafeMutableRawPointer? { candidates[id] }
  func ended(_ id: UInt64) { candidates[id] = nil }

  func runFirst(of queue: UnsafeMutableRawPointer) {
    guard let first = queues[queue]?.first else { return }
    running.append(queue)
    caw_work(first.context, first.function)
    running.removeLast()
    queues[queue]?.removeFirst()
    if queues[queue]?.isEmpty ?? true { queues[queue] = nil }
    first.release()
  }

  /// Runs what a queue has taken, because the calling code is about to run something on it, and waits for that.
  func runAll(of queue: UnsafeMutableRawPointer) {
    // From within, which only a queue allows that runs several at once.
    if running.contains(queue) { return }
    while queues[queue] != nil { runFirst(of: queue) }
  }

  /// Whether the calling code is work of the main queue.
  var isOnMain: Bool { running.last.map(caw_is_main_queue) ?? false }

  /// Releases what has not run, and does not run any more.
  func end() {
    // In any order: no code of the world runs any more.
    for work in queues.values.joined() { work.release() }
    (queues, candidates) = ([:], [:])
  }
}

/// A block, or a function with its argument, that was given to a queue.
struct AsyncWork {
  let queue: UnsafeMutableRawPointer
  let context: UnsafeMutableRawPointer?
  let function: UnsafeMutableRawPointer
  let isBlock: Bool

  /// Releases what the world holds of it: the block, and the queue.
  func release() { caw_release_work(isBlock ? context : nil, queue) }
}
