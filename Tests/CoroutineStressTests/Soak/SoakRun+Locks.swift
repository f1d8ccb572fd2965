import Coroutine

extension SoakRun {
  func hold(_ index: Int) {
    let counter = world.mutexCounters[index]
    world.findings.expect(counter.enter() == 1, "two hold mutex \(index) at once")
    counter.change()
  }

  func leave(_ index: Int) { world.mutexCounters[index].leave() }

  func lock(_ index: Int, _ inner: [SoakAction]) throws {
    let (mutex, counter) = (world.mutexes[index], world.mutexCounters[index])
    try wait("FairMutex.lock", until: !counter.isHeld) { try mutex.lock() }
    defer { mutex.unlock() }
    hold(index)
    defer { leave(index) }
    try run(inner)
  }

  func tryLock(_ index: Int) throws {
    guard world.mutexes[index].tryLock() else { return }
    hold(index)
    leave(index)
    world.mutexes[index].unlock()
  }

  func take(_ index: Int, _ permits: Int) {
    let semaphore = world.semaphores[index]
    world.findings.expect(
      semaphore.taken.change(by: permits) <= semaphore.permits,
      "more permits of semaphore \(index) are held than there are"
    )
  }

  func acquire(_ index: Int, _ permits: Int, _ inner: [SoakAction]) throws {
    let semaphore = world.semaphores[index]
    do {
      semaphore.want(permits)
      defer { semaphore.wantNoMore(permits) }
      try wait("FairSemaphore.acquire", until: semaphore.canTake) { try semaphore.semaphore.acquire(permits) }
    }
    defer { semaphore.semaphore.release(permits) }
    take(index, permits)
    defer { semaphore.taken.change(by: -permits) }
    try run(inner)
  }

  func read(_ inner: [SoakAction]) throws {
    let (lock, written, readers, writers) = (world.readWriteLock, world.written, world.readers, world.writersWaiting)
    try wait("lockRead", until: !written.isHeld && (readers.now == 0 || writers.now == 0)) { try lock.lockRead() }
    defer { lock.unlockRead() }
    readers.change()
    defer { readers.change(by: -1) }
    world.findings.expect(!written.isHeld, "one reads while another writes")
    let before = written.read()
    try run(inner)
    world.findings.expect(written.read() == before, "what a reader reads has changed")
  }

  func write(_ inner: [SoakAction]) throws {
    let (lock, written, readers) = (world.readWriteLock, world.written, world.readers)
    do {
      world.writersWaiting.change()
      defer { world.writersWaiting.change(by: -1) }
      try wait("lockWrite", until: !written.isHeld && readers.now == 0) { try lock.lockWrite() }
    }
    defer { lock.unlockWrite() }
    let count = written.enter()
    defer { written.leave() }
    world.findings.expect(count == 1 && readers.now == 0, "one writes while another reads or writes")
    written.change()
    try run(inner)
  }

  /// Takes one token, which the signalling flow has added before.
  func waitForSignal(_ index: Int) throws {
    let signal = world.signals[index]
    let (mutex, counter, tokens) = (world.mutexes[signal.mutex], world.mutexCounters[signal.mutex], signal.tokens)
    try wait("FairMutex.lock", until: !counter.isHeld) { try mutex.lock() }
    defer { mutex.unlock() }
    // The mutex is unlocked meanwhile. A deadline does not end the wait before the mutex is locked again.
    let ready: @Sendable () -> Bool = { !counter.isHeld && tokens.now > 0 }
    try wait(.flows("Condition.wait", ready), isPlain: true) { try signal.condition.wait { tokens.now > 0 } }
    hold(signal.mutex)
    tokens.change(by: -1)
    leave(signal.mutex)
  }

  func signal(_ index: Int) throws {
    let signal = world.signals[index]
    let (mutex, counter) = (world.mutexes[signal.mutex], world.mutexCounters[signal.mutex])
    try wait("FairMutex.lock", until: !counter.isHeld) { try mutex.lock() }
    defer { mutex.unlock() }
    hold(signal.mutex)
    signal.tokens.change()
    leave(signal.mutex)
    signal.condition.signal()
  }

  func once() throws {
    let world = self.world
    let value = try outside("Once.run") {
      try world.once.run {
        try co_yield()
        return world.onceRuns.change()
      }
    }
    world.findings.expect(value == 1, "Once has run \(value) times")
  }

  func share(_ key: Int) throws {
    // A flight is a separate job, which the last caller to leave cancels.
    let value = try outside("SingleFlight.run", isPlain: false) {
      try world.flights.run(key) {
        try co_delay(.microseconds(50))
        return key
      }
    }
    world.findings.expect(value == key, "a flight for \(key) gave \(value)")
  }
}
