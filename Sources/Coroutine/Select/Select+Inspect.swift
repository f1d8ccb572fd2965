import Synchronization

// A select's cases lie on the stack of the waiting job, which no reference keeps. They are read under the lock of one of the
// select's own sources, after the word was seen WAITING under that lock. To end, the select must take that lock, to unlink its
// node, or it was claimed under it; so its frame stays as long as the lock is held (Waiter.swift, invariant 4).

extension Inspection {
  /// The cases of a select that has waited in `source` since `word`; nil: it does not wait any more.
  static func cases(of job: JobRef, _ word: UInt64, in source: any Inspectable) -> [InspectedCase]? {
    let lock = source.waitLock
    lock.pointee.lock()
    defer { lock.pointee.unlock() }
    let nodes = SelectWaiterRef(bitPattern: job.pointee.selectNodes.load(ordering: .acquiring))
    let count = job.pointee.selectCount.load(ordering: .relaxed)
    // After the address: a later select's address would come with a later word.
    guard let nodes, job.pointee.wait.load(ordering: .acquiring) == word else { return nil }
    return (0..<Int(count)).map { index in
      let (waiter, source) = (nodes + index, nodes[index].source)
      return InspectedCase(
        source: source.pointee.place,
        queue: source.pointee.queue.map { UInt(bitPattern: $0) },
        timeout: waiter.pointee.kind == .timeout ? UInt64(waiter.pointee.words[0]) : nil
      )
    }
  }
}

/// A case of a select, as a dump copies it under the lock.
struct InspectedCase {
  let source: AnyObject?
  let queue: UInt?
  /// In nanoseconds.
  let timeout: UInt64?
}
