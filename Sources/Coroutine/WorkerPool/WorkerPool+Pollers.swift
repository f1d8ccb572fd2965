import Synchronization

// The pollers of the workers. All are made when a coroutine on a worker first waits for a descriptor. So a program that
// waits for no descriptor has no poller, and another one has a constant number from then on. If a poller cannot be
// made, because no descriptor is free, the next first wait for a descriptor tries again. Until then, the poller with a
// thread watches the descriptors of that worker's coroutines, or the wait throws the error.
//
// Spare workers have no pollers, because a connection would stay with a worker that only finishes other workers' jobs.
// The descriptors of their coroutines are added to another worker's poller.
//
// A worker that sleeps on its word while its poller is made takes no events. So a coroutine adds descriptors to the
// poller of the worker that runs it: that worker is awake, and sleeps in its poller afterwards (WorkerHost.sleep). A
// coroutine of a spare worker first wakes the other worker. Either the wake-up moves the inbox out of `idle`, or that
// worker has not gone idle yet, and finds its poller after it has.

extension WorkerPool {
  private static let pollerLock = ThreadLock()

  /// Makes the pollers that are missing, that of `first` before the others; stops at the first that cannot be made.
  fileprivate func makePollers(first: Scheduler) {
    Self.pollerLock.withLock {
      for worker in [first] + workers where !worker.hasPoller {
        guard let made = try? Poller() else { return }
        // Never released, as the worker is not.
        let address = UInt(bitPattern: Unmanaged.passRetained(made).toOpaque())
        worker.asWorker { $0.poller.store(address, ordering: .sequentiallyConsistent) }
      }
    }
  }
}

extension Scheduler {
  /// Whether this is a worker with a poller.
  var hasPoller: Bool {
    @inline(__always) get { worker?._withUnsafeGuaranteedRef { $0.poller.load(ordering: .acquiring) != 0 } ?? false }
  }

  /// The worker's poller, if it has one.
  ///
  /// Sequentially consistent, as are the store and the words of the inbox: a worker that has gone idle sees the poller
  /// whose maker found it still awake.
  var ownPoller: Unmanaged<Poller>? {
    let address = worker?._withUnsafeGuaranteedRef { $0.poller.load(ordering: .sequentiallyConsistent) } ?? 0
    return UnsafeRawPointer(bitPattern: address).map(Unmanaged.fromOpaque)
  }

  /// Returns the poller for the descriptors of this worker's coroutines; nil if this is no worker, or if none could be
  /// made.
  func pollerOfWorker() -> Poller? {
    guard let pool = readyQueue.pointee.workerPool?.takeUnretainedValue() else { return nil }
    let worker = pool.workers[workerIndex % pool.workers.count]
    if !worker.hasPoller { pool.makePollers(first: worker) }
    guard let poller = worker.ownPoller else { return nil }
    if worker !== self, worker.inbox.wakeUp() { worker.submit() }
    return poller.takeUnretainedValue()
  }

  /// Takes and delivers events if it is time to; called by a drain that begins.
  @inline(never)
  func pollDescriptors(_ now: UInt64) { ownPoller?._withUnsafeGuaranteedRef { $0.poll(now) } }
}
