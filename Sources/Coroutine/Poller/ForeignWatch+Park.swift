// The parked part of a wait for a foreign descriptor, in one direction or in both (ForeignWatch.swift, steps 3 and 4).

extension ForeignWatch {
  /// Suspends until an event of one of `directions`, or the end; returns at once if there was one since the last try.
  func park(_ directions: Directions) throws {
    // Read again at each wait: since its wake-up, the job may have moved to another thread, or been cancelled.
    let (carrier, job) = try Carrier.beginWaiting()
    directions.forEach { watched.direction($0).pointee.lock.lock() }
    guard beginWaiting(directions) else { return unlock(directions) }
    var waiters = (Waiter(job: job), Waiter(job: job))
    try withUnsafeMutablePointer(to: &waiters) { waiters in
      let first = UnsafeMutableRawPointer(waiters).assumingMemoryBound(to: Waiter.self)
      let source = UInt(bitPattern: Int(number))
      _ = try WaitQueue.park(carrier, job, directions.waitKind, for: source) { epoch in
        directions.forEach { watched.direction($0).pointee.waiters.append(first + $0.index, epoch) }
        unlock(directions)
      } withdraw: {
        withdraw(first, directions)
      }
      // The direction whose event has ended the wait has unlinked its waiter.
      if directions == [.reading, .writing] { withdraw(first, directions) }
    }
  }

  /// Makes the words of all directions WAITING; false if one of them is ready or closed, and then none is.
  ///
  /// Called under the locks.
  private func beginWaiting(_ directions: Directions) -> Bool {
    var begun: Directions = []
    directions.forEach { direction in
      if watched.direction(direction).beginWaiting() { begun.insert(Directions(direction)) }
    }
    if begun == directions { return true }
    begun.forEach { watched.direction($0).endWaitingIfAlone() }
    return false
  }

  private func unlock(_ directions: Directions) {
    directions.forEach { watched.direction($0).pointee.lock.unlock() }
  }

  private func withdraw(_ first: UnsafeMutablePointer<Waiter>, _ directions: Directions) {
    directions.forEach { watched.direction($0).withdraw(first + $0.index) }
  }
}

extension WatchedDescriptor.Direction {
  /// The index in a pair.
  fileprivate var index: Int { self == .reading ? 0 : 1 }
}

extension ForeignWatch.Directions {
  fileprivate var waitKind: WaitKind {
    self == .reading ? .readable : self == .writing ? .writable : .descriptor
  }
}
