import Synchronization

// What a dump says about each kind of object that jobs wait for.

extension Inspectable {
  /// Its type and address: two lines with the same address are about the same object.
  var identity: String {
    "\(type(of: self)) 0x" + String(UInt(bitPattern: Unmanaged.passUnretained(self).toOpaque()), radix: 16)
  }
}

extension Channel: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { lockAddress }

  func inspect(_ names: JobNames) -> String {
    let (count, limit) = lock.withLock { (state.ring.count, state.limit) }
    return switch limit {
    case 0: "\(identity), rendezvous"
    case .max: "\(identity), \(count) values buffered"
    default: "\(identity), \(count) of \(limit) values buffered"
    }
  }

  func verb(of queue: UInt?) -> String { queue == UInt(bitPattern: senders) ? "send to" : "receive from" }
}

extension FairMutex: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { permit.lockAddress }

  func inspect(_ names: JobNames) -> String {
    let word = owner.load(ordering: .relaxed)
    return word == 0 ? "\(identity), about to change its owner" : "\(identity), held by \(names.owner(word))"
  }

  func verb(of queue: UInt?) -> String { "lock" }
}

extension FairReadWriteLock: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { permits.lockAddress }

  func inspect(_ names: JobNames) -> String {
    let word = writer.load(ordering: .relaxed)
    if word != 0 { return "\(identity), held for writing by \(names.owner(word))" }
    let readers = Self.everyone &- permits.available
    if readers == Self.everyone { return "\(identity), about to change its owner" }
    return "\(identity), held by \(readers) reader\(readers == 1 ? "" : "s")"
  }

  func verb(of queue: UInt?) -> String { "lock" }
}

extension FairSemaphore: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { permits.lockAddress }
  func inspect(_ names: JobNames) -> String { "\(identity), \(available) permits available" }
  func verb(of queue: UInt?) -> String { "acquire" }
}

extension RateLimiter: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { gate.lockAddress }
  func inspect(_ names: JobNames) -> String { identity }
  func verb(of queue: UInt?) -> String { "acquire" }
}

extension AnyJob: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { completion.lockAddress }
  func inspect(_ names: JobNames) -> String { "job \(names.job(self))" }
  func verb(of queue: UInt?) -> String { "await" }
}

extension AnyPromise: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { completion.lockAddress }
  func inspect(_ names: JobNames) -> String { "\(identity), created at \(launchSite.description)" }
  func verb(of queue: UInt?) -> String { "await" }
}
