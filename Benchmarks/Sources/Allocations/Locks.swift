import Coroutine
import Harness

// Locks taken, waited for, handed over and given back: nothing of it may allocate once the lock is made.

func countLocks(into counts: inout Counts) throws {
  try counts.countWithin("mutex_free", 1000) { count in
    let lock = FairMutex()
    return { for _ in 0..<count { try lock.withLock {} } }
  }
  try counts.countWithin("mutex_handed_over", 1000) { count in
    let (lock, tally) = (FairMutex(), Tally())
    return try contended(count, tally) {
      try lock.lock()
      try co_yield()
      lock.unlock()
    }
  }
  try counts.countWithin("semaphore_handed_over", 1000) { count in
    let (semaphore, tally) = (FairSemaphore(3), Tally())
    return try contended(count, tally) {
      try semaphore.acquire(2)
      try co_yield()
      semaphore.release(2)
    }
  }
  try counts.countWithin("read_write_handed_over", 1000) { count in
    let (lock, tally) = (FairReadWriteLock(), Tally())
    return try contended(count, tally) {
      try lock.withReadLock { try co_yield() }
      try lock.withWriteLock { try co_yield() }
    }
  }
  try counts.countWithin("condition_ping_pong", 1000) { count in
    let (lock, tally) = (FairMutex(), Tally())
    let changed = Condition(lock)
    co_launch {
      for carrier in 0..<count {
        try lock.withLock {
          try changed.wait { tally.value == 2 * carrier + 1 }
          tally.add(1)
          changed.signal()
        }
      }
    }
    return {
      for carrier in 0..<count {
        try lock.withLock {
          try changed.wait { tally.value == 2 * carrier }
          tally.add(1)
          changed.signal()
        }
      }
      try lock.withLock { try changed.wait { tally.value == 2 * count } }
    }
  }
  try counts.countWithin("wait_group", 1000) { count in
    let (group, tally) = (WaitGroup(), Tally())
    co_launch {
      for _ in 0..<count {
        while tally.value == 0 { try co_yield() }
        tally.add(-1)
        group.done()
      }
    }
    return {
      for _ in 0..<count {
        group.add()
        tally.add(1)
        try group.wait()
      }
    }
  }
}

/// Four coroutines, already started, that do `operation` `count` times together.
private func contended(
  _ count: Int,
  _ tally: Tally,
  _ operation: @escaping () throws -> Void
) throws -> () throws -> Void {
  let begun = Tally()
  nonisolated(unsafe) let operation = operation  // Sound because all who call it are on one serial queue.
  for _ in 0..<4 {
    co_launch {
      while begun.value == 0 { try co_yield() }
      for _ in 0..<(count / 4) {
        try operation()
        tally.add(1)
      }
    }
  }
  try co_yield()
  return {
    begun.add(1)
    while tally.value < count { try co_yield() }
    expect(tally.value, equals: count, "operations")
  }
}
