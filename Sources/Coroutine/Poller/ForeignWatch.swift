import Glibc
import Synchronization

// The waits for a descriptor of others: of a library whose descriptor is watched once (ForeignDescriptor of
// CoroutineNet), and of `co_untilReadable`, which makes such an object for each wait (Bridge/Descriptor.swift).
//
// The library owns its number, and may close it at any moment, against the rules. So this object watches a duplicate:
// another number for the same open file, which the runtime owns (WatchedDescriptor). The numbers of the library are not
// used after `init`. Therefore:
//
//   the library closes its number before `end`     the open file lives until `end`, which closes the duplicate; waits
//                                                  see what the peer does
//   the number is used again for another file      nothing here concerns that file, neither a wait nor `end`
//   the file has further numbers (dup, a fork)     `end` removes the duplicate from the poller before it closes it, so
//                                                  no event comes later
//   a forked child calls `end`, or releases this   it closes its copy, and leaves the parent's registration
//
// A wait. `word(d)` is the word of a direction (Readiness.swift): READY if an event came since the last failed try.
//
//   1 examine each direction d that is asked for, with w = word(d):
//       CLOSED                             throw
//       IDLE, WAITING                      nothing is ready, and the next readiness has an event: no system call
//       READY, the caller had EAGAIN       by its record of d, below: `clear(w)`, or ready, without a system call
//       READY otherwise                    poll, one call for both directions; if not ready, `clear(w)`
//     If some direction is ready, return the ready ones.
//   2 add the duplicate to a poller, unless that was done
//   3 take the locks of the directions, in the order of their addresses, and link a waiter in each, unless one has
//     become READY or CLOSED
//   4 park; an event of either direction claims the wait; unlink the other waiter
//   5 return the directions that are READY; if none is, another coroutine has cleared it: 3 again
//
// So a wait after EAGAIN costs no system call beside the epoll_wait of the poller's owner, and any other at most one.
//
// Why no readiness is lost. By Readiness.swift, a word may become IDLE by `clear(w)` if w was read before a try that
// found nothing. The poll of step 1 is such a try. The try of the caller, which got EAGAIN, is one of a library, before
// this function was called, so w is remembered: each wait that returns d as ready stores a record of d, the word that
// it has read and its job. A later wait of the same job compares:
//
//   record = (this job, w)       the try came after that wait, hence after w was read: `clear(w)`
//   record = (this job, other)   an event came since that wait, perhaps after the try: ready
//   no record of this job        another coroutine waited last, perhaps between the try and this call: poll
//
// Jobs are compared by address. If the address belongs to a new job, it began after the recorded wait, and so did its
// try.
//
// The first wait of all has no record. After EAGAIN it reads w, then adds the duplicate, then clears w: adding reports
// the readiness that there is, so what came between the try and the adding has an event.
//
// A library that does not read to EAGAIN leaves input in the socket. No new event comes for that input, and none is
// needed: the word stays READY, because only a failed try clears it, and the next wait polls.
//
// Why the waiters are right. Each waiter is linked while the word of its direction is WAITING, under the lock, and both
// carry the epoch of one wait: of two events, one claims it. The waiter of the other direction is unlinked either by
// the thread whose claim fails, or in step 4, both under its lock (Waiter.swift, 4).

/// A descriptor of another library, watched once.
package final class ForeignWatch: @unchecked Sendable {
  // Sound because `records` are accessed under the locks of their directions, and everything else is constant.

  package struct Directions: OptionSet, Sendable {
    package let rawValue: UInt8
    package init(rawValue: UInt8) { self.rawValue = rawValue }
    package static let reading = Directions(rawValue: 1)
    package static let writing = Directions(rawValue: 2)
  }

  /// The word that the last wait for a direction has returned with, and the address of its job.
  private struct Record {
    var word = ReadyWord(bits: 0)
    var job: UInt = 0
  }

  /// The owner of the duplicate.
  package let watched: WatchedDescriptor
  /// The number that the library knows.
  package let number: Int32
  private let records: UnsafeMutablePointer<Record>

  /// Duplicates an open descriptor.
  package init(_ number: Int32) throws(WatchedDescriptor.Failure) {
    var status = stat()
    guard fstat(number, &status) == 0 else { throw .system(errno) }
    // They are always ready, and epoll refuses them. Also, the close of a duplicate would end the process's record
    // locks on the file.
    switch status.st_mode & S_IFMT {
    case S_IFREG, S_IFDIR, S_IFBLK: throw .system(EPERM)
    default: break
    }
    let duplicate = fcntl(number, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)
    guard duplicate >= 0 else { throw .system(errno) }
    watched = try WatchedDescriptor(duplicate, shortReadMeansEmpty: false)
    self.number = number
    records = .allocate(capacity: 2)
    records.initialize(repeating: Record(), count: 2)
  }

  deinit { records.deallocate() }

  /// Suspends until a direction is ready; the sources and costs are above.
  package func wait(for directions: Directions, afterEAGAIN: Directions) throws -> Directions {
    let (_, job) = try Carrier.beginWaiting()
    // A simulated world waits for real descriptors only where that is declared.
    try Host.requireReal { "the descriptor \(number)" }
    var ready = try examine(directions, afterEAGAIN, job)
    while ready.isEmpty {
      try park(directions)
      ready = try directions.filter { direction in
        let state = watched.direction(direction).word.state
        if state == .closed { throw WatchedDescriptor.Failure.closed }
        return state == .ready
      }
    }
    ready.forEach { remember($0, job) }
    return ready
  }

  /// Records that everything was read, or that the output is full, in the name of the coroutine that waited last.
  ///
  /// As if its next wait came now, and said that it had EAGAIN. Another coroutine's next wait then needs no poll. After
  /// a short read alone, readiness stays if the peer has closed (Readiness.swift).
  package func settle(_ directions: Directions, afterShortRead: Bool = false) {
    guard let job = Carrier.current?.pointee.job else { return }
    directions.forEach { direction in
      let word = watched.direction(direction).word
      if record(direction).job == UInt(bitPattern: job), record(direction).word == word {
        watched.direction(direction).clear(word, afterShortRead: afterShortRead)
      }
    }
  }

  // MARK: Before the wait

  /// Returns the directions that are ready, step 1, after which `directions` are watched, step 2.
  private func examine(_ directions: Directions, _ afterEAGAIN: Directions, _ job: JobRef) throws -> Directions {
    var ready: Directions = []
    var unknown: Directions = []
    // What is cleared if this call adds the descriptor to the poller.
    var fresh: Directions = []
    let seen = (watched.direction(.reading).word, watched.direction(.writing).word)
    try directions.forEach { direction in
      let word = direction == .reading ? seen.0 : seen.1
      switch word.state {
      case .closed: throw WatchedDescriptor.Failure.closed
      case .idle, .waiting: return
      case .ready: break
      }
      let record = record(direction)
      if !afterEAGAIN.contains(Directions(direction)) {
        unknown.insert(Directions(direction))
      } else if record.job == 0, !watched.isWatched.load(ordering: .acquiring) {
        fresh.insert(Directions(direction))
      } else if record.job != UInt(bitPattern: job) {
        unknown.insert(Directions(direction))
      } else if record.word != word {
        ready.insert(Directions(direction))
      } else {
        watched.direction(direction).clear(word)
      }
    }
    if ready.isEmpty, !unknown.isEmpty { ready = try poll(unknown, seen) }
    if !ready.isEmpty { return ready }
    if try watched.watch() {
      fresh.forEach { watched.direction($0).clear($0 == .reading ? seen.0 : seen.1) }
    } else if !fresh.isEmpty {
      // Another coroutine has added it meanwhile, perhaps before the word was read.
      ready = try poll(fresh, seen)
    }
    return ready
  }

  /// Asks the kernel whether the directions are ready, and changes nothing.
  func isReady(_ directions: Directions) throws -> Bool {
    guard watched.enter() else { throw WatchedDescriptor.Failure.closed }
    defer { watched.leave() }
    return !query(directions).isEmpty
  }

  /// Asks the kernel which directions are ready; the others become idle, unless there was an event since `seen`.
  private func poll(_ directions: Directions, _ seen: (ReadyWord, ReadyWord)) throws -> Directions {
    guard watched.enter() else { throw WatchedDescriptor.Failure.closed }
    defer { watched.leave() }
    let ready = query(directions)
    directions.subtracting(ready).forEach {
      watched.direction($0).clear($0 == .reading ? seen.0 : seen.1)
    }
    return ready
  }

  /// The directions that are ready according to poll; the caller is a user of the number.
  private func query(_ directions: Directions) -> Directions {
    var events: Int32 = 0
    if directions.contains(.reading) { events |= Int32(POLLIN) }
    if directions.contains(.writing) { events |= Int32(POLLOUT) }
    var query = pollfd(fd: watched.number, events: Int16(events), revents: 0)
    let count = Glibc.poll(&query, 1, 0)
    // A poll that fails (no memory) has found nothing out: the caller's own call does.
    if count < 0 { return directions }
    let found = Int32(query.revents)
    if found & Int32(POLLERR | POLLHUP | POLLNVAL) != 0 { return directions }
    var ready: Directions = []
    if found & Int32(POLLIN) != 0 { ready.insert(.reading) }
    if found & Int32(POLLOUT) != 0 { ready.insert(.writing) }
    return ready
  }

  // MARK: Records

  private func record(_ direction: WatchedDescriptor.Direction) -> Record {
    let readiness = watched.direction(direction)
    return readiness.pointee.lock.withLock { records[direction == .reading ? 0 : 1] }
  }

  private func remember(_ direction: WatchedDescriptor.Direction, _ job: JobRef) {
    let readiness = watched.direction(direction)
    readiness.pointee.lock.withLock {
      records[direction == .reading ? 0 : 1] = Record(word: readiness.word, job: UInt(bitPattern: job))
    }
  }
}

extension ForeignWatch.Directions {
  init(_ direction: WatchedDescriptor.Direction) { self = direction == .reading ? .reading : .writing }

  /// Calls `body` with each direction, that of reading first.
  func forEach(_ body: (WatchedDescriptor.Direction) throws -> Void) rethrows {
    if contains(.reading) { try body(.reading) }
    if contains(.writing) { try body(.writing) }
  }

  func filter(_ isIncluded: (WatchedDescriptor.Direction) throws -> Bool) rethrows -> Self {
    var result: Self = []
    try forEach { if try isIncluded($0) { result.insert(Self($0)) } }
    return result
  }
}

// MARK: - The parked part of a wait

// The parked part of a wait for a foreign descriptor, in one direction or in both: steps 3 and 4.

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
