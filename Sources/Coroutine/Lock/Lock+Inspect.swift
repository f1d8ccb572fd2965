import Synchronization

// The descriptions of locks, for dumps.

extension FairMutex: Owned {
  var ownerInDump: UInt { owner.load(ordering: .relaxed) }
  var waitLock: UnsafePointer<SpinLock> { permit.lockAddress }

  func inspect(_ names: JobNames) -> String {
    let word = ownerInDump
    if permit.pointee.isOfOnce {
      let once = identity(as: "Once")
      return word == 0 ? "\(once), about to end" : "\(once), run by \(names.owner(word))"
    }
    return word == 0 ? "\(identity), about to change its owner" : "\(identity), held by \(names.owner(word))"
  }

  func verb(of queue: UInt?) -> String { "lock" }
}

extension FairReadWriteLock: Owned {
  var ownerInDump: UInt { writer.load(ordering: .relaxed) }
  var waitLock: UnsafePointer<SpinLock> { permits.lockAddress }

  func inspect(_ names: JobNames) -> String {
    let word = ownerInDump
    if word != 0 { return "\(identity), held for writing by \(names.owner(word))" }
    let readers = Self.everyone &- permits.availableInDump
    if readers == Self.everyone { return "\(identity), about to change its owner" }
    return "\(identity), held by \(readers) reader\(readers == 1 ? "" : "s")"
  }

  func verb(of queue: UInt?) -> String { "lock" }
}

extension FairSemaphore: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { permits.lockAddress }
  func inspect(_ names: JobNames) -> String { "\(identity), \(permits.availableInDump) permits available" }
  func verb(of queue: UInt?) -> String { "acquire" }
}

extension RateLimiter: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { gate.lockAddress }
  func inspect(_ names: JobNames) -> String { identity }
  func verb(of queue: UInt?) -> String { "acquire" }
}

extension WaitGroup: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { countdown.lockAddress }
  func inspect(_ names: JobNames) -> String { "\(identity), \(countdown.countInDump) left" }
  func verb(of queue: UInt?) -> String { "wait for" }
}

extension Latch: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { countdown.lockAddress }
  func inspect(_ names: JobNames) -> String { "\(identity), \(countdown.countInDump) left" }
  func verb(of queue: UInt?) -> String { "wait for" }
}
