import Synchronization

// A select's cases are on the stack of the waiting job, which no reference keeps alive. They are read under the lock of
// one of the select's own sources, after the word was seen WAITING under that lock. To end, the select must take that
// lock to unlink its waiter, or it was claimed under it; so its frame stays as long as the lock is held (Waiter.swift,
// invariant 4).

extension Inspection {
  /// Returns the cases of a select that has waited in `source` since `word`; nil if it no longer waits.
  static func cases(of job: JobRef, _ word: UInt64, in source: any Inspectable) -> [InspectedCase]? {
    // Reserved before the lock is taken.
    var cases: [InspectedCase] = []
    cases.reserveCapacity(SelectRun.most)
    let lock = source.waitLock
    lock.pointee.lock()
    defer { lock.pointee.unlock() }
    let waiters = SelectWaiterRef(bitPattern: job.pointee.selectWaiters.load(ordering: .acquiring))
    let count = job.pointee.selectCount.load(ordering: .relaxed)
    // Read after the address: the address of a later select would come with a later word.
    guard let waiters, job.pointee.wait.load(ordering: .acquiring) == word else { return nil }
    for index in 0..<Int(count) {
      let (waiter, source) = (waiters + index, waiters[index].source)
      let single = InspectedCase(
        source: source.pointee.target,
        queue: source.pointee.queue.map { UInt(bitPattern: $0) },
        timeout: waiter.pointee.kind == .timeout ? UInt64(waiter.pointee.words[0]) : nil
      )
      cases.append(single)
    }
    return cases
  }
}

/// A case of a select, copied by a dump under the lock.
struct InspectedCase {
  let source: AnyObject?
  let queue: UInt?
  /// In nanoseconds.
  let timeout: UInt64?
}
