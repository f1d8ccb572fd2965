import Coroutine
import Testing

@Suite("Condition", .timeLimit(.minutes(10)))
struct ConditionTests {
  /// A value that a mutex protects, and a condition on it.
  private final class Shelf: @unchecked Sendable {
    // Sound because `count` is accessed with the mutex held only.
    let lock = FairMutex()
    let changed: Condition
    private(set) var count = 0

    init() { changed = Condition(lock) }

    func put(_ number: Int = 1) throws { try lock.withLock { count += number } }

    func take() throws {
      try lock.withLock {
        try changed.wait { count > 0 }
        count -= 1
      }
    }
  }

  @Test func `a predicate that is already true does not wait`() async throws {
    try await onSerialQueue {
      let shelf = Shelf()
      try shelf.put()
      try shelf.take()
      #expect(shelf.lock.tryLock(), "unlocked at the end")
      shelf.lock.unlock()
    }
  }

  @Test func `the mutex is free during the wait, and held whenever the predicate is evaluated`() async throws {
    try await onSerialQueue {
      let (lock, row, isOpen) = (FairMutex(), Queueing(), Flag())
      let condition = Condition(lock)
      try row.enqueue("waiter") {
        try lock.withLock {
          try condition.wait {
            #expect(!lock.tryLock())
            return isOpen.isRaised
          }
          #expect(!lock.tryLock())
        }
      }
      try lock.withLock {
        isOpen.raise()
        condition.signal()
        try row.settle()
        #expect(row.trace.all.isEmpty, "signalled, but the mutex is not free yet")
      }
      try row.settle()
      #expect(row.trace.all == ["waiter"])
    }
  }

  @Test func `a signal wakes the longest waiter, a broadcast all, in order`() async throws {
    let trace = try await onSerialQueue {
      let (shelf, row) = (Shelf(), Queueing())
      for label in ["a", "b", "c", "d"] { try row.enqueue(label) { try shelf.take() } }
      try shelf.put()
      shelf.changed.signal()
      try row.settle()
      #expect(row.trace.all == ["a"])
      try shelf.put(3)
      shelf.changed.broadcast()
      try row.settle()
      return row.trace.all
    }
    #expect(trace == ["a", "b", "c", "d"])
  }

  @Test func `a waiter that finds its predicate false waits again`() async throws {
    try await onSerialQueue {
      let (shelf, row) = (Shelf(), Queueing())
      try row.enqueue("waiter") { try shelf.take() }
      shelf.changed.signal()
      shelf.changed.broadcast()
      try row.settle()
      #expect(row.trace.all.isEmpty)
      try shelf.put()
      shelf.changed.signal()
      try row.settle()
      #expect(row.trace.all == ["waiter"])
    }
  }

  @Test func `a signal without a waiter is not stored, and has no effect`() async throws {
    try await onSerialQueue {
      let (shelf, row) = (Shelf(), Queueing())
      shelf.changed.signal()
      shelf.changed.broadcast()
      let waiter = try row.enqueue("waiter") { try shelf.take() }
      try row.settle()
      #expect(row.trace.all.isEmpty)
      waiter.cancel()
      try row.settle()
    }
  }

  @Test func `a cancelled waiter holds the mutex when it throws, even if it must wait for it`() async throws {
    let trace = try await onSerialQueue {
      let (shelf, row) = (Shelf(), Queueing())
      let waiter = try row.enqueue("waiter") {
        try shelf.lock.withLock {
          defer { #expect(!shelf.lock.tryLock()) }
          try shelf.changed.wait { false }
        }
      }
      try shelf.lock.withLock {
        waiter.cancel(Oops("cancelled"))
        try row.settle()
        row.trace("still mine")
      }
      try row.settle()
      #expect(shelf.lock.tryLock(), "unlocked once")
      return row.trace.all
    }
    #expect(trace == ["still mine", "waiter: Oops(cancelled)"])
  }

  @Test func `a signal that meets a cancelled waiter goes to the next`() async throws {
    let trace = try await onSerialQueue {
      let (shelf, row) = (Shelf(), Queueing())
      let first = try row.enqueue("first") { try shelf.take() }
      try row.enqueue("second") { try shelf.take() }
      try shelf.put()
      first.cancel()
      shelf.changed.signal()
      try row.settle()
      return row.trace.all
    }
    #expect(Set(trace) == ["first: CancellationError", "second"])
  }

  @Test func `a waiter that is signalled and then cancelled still uses the signal`() async throws {
    let trace = try await onSerialQueue {
      let (shelf, row) = (Shelf(), Queueing())
      let waiter = try row.enqueue("waiter") {
        try shelf.take()
        row.trace("took it")
        try co_checkCancelled()
      }
      try shelf.put()
      shelf.changed.signal()
      waiter.cancel(Oops("late"))
      try row.settle()
      return row.trace.all
    }
    #expect(trace == ["took it", "waiter: Oops(late)"])
  }

  @Test func `waiting without the mutex ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try await onSerialQueue { try Condition(FairMutex()).wait { true } }
    }
    #expect(died?.said("needs the mutex that its condition was made with") == true)
  }
}
