import Synchronization

// The poller of the process for what no worker's poller watches, with a thread.
//
//   STARTED --take, deliver, …--> STOPPING (`stop` signals the thread) --> ENDED (the thread releases the poller)

extension Poller {
  private static let lock = SpinLock()
  // Sound because it is read and written under `lock`.
  nonisolated(unsafe) private static var made: Poller?

  /// Returns the poller of the process, which is created and started at the first wait that needs it.
  ///
  /// If that fails, a later wait tries again.
  static func shared() throws -> Poller {
    if let made = lock.withLock({ made }) { return made }
    // Started before it is published, so that no wait finds a poller without a thread.
    let mine = try Poller()
    try mine.start()
    // If two threads have created a poller at once, one of the two is stopped.
    let kept = lock.withLock {
      if let made { return made }
      made = mine
      return mine
    }
    if kept !== mine { mine.stop() }
    return kept
  }

  /// The poller for a descriptor that the running coroutine is the first to wait for.
  static func forFirstWait() throws -> Poller {
    if let worker = Carrier.current?.pointee.scheduler,
      let own = worker._withUnsafeGuaranteedRef({ $0.pollerOfWorker() })
    {
      return own
    }
    return try shared()
  }

  /// Starts the thread that owns the poller, and holds it until it ends.
  private func start() throws {
    let code = DetachedThread.start("co-poller") { [self] in
      while !isStopping.load(ordering: .acquiring) {
        take(waiting: -1)
        deliver()
      }
    }
    guard code == 0 else { throw DescriptorRefusal(code: code) }
  }

  /// Makes the thread end and release the poller.
  private func stop() {
    isStopping.store(true, ordering: .releasing)
    wakeUp()
  }
}
