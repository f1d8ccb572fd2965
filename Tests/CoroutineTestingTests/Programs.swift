import Coroutine
import CoroutineTesting

// Small programs for worlds. The tests check what a search makes of them, and the program `worlds` of the benchmarks
// measures how long it takes; its folder has a link to this file.

/// A value that coroutines of one world share without any lock, as a class of a program might.
final class Cell<Value>: @unchecked Sendable {
  // Sound because a world runs its coroutines on one thread.
  var value: Value
  init(_ value: Value) { self.value = value }
}

/// The error of a program that has lost an update.
struct Lost: Error {}

enum Programs {
  /// Two coroutines that each add four times, and wait after each; a random failing run has many switches.
  ///
  /// An update is lost if the other coroutine runs between a read and its write.
  @Sendable static func race() throws {
    let balance = Cell(0)
    let jobs = (0..<2).map { _ in
      co_launch {
        for _ in 0..<4 {
          let seen = balance.value
          co_point()
          balance.value = seen + 1
          try co_yield()
        }
      }
    }
    for job in jobs { try job.join() }
    if balance.value != 8 { throw Lost() }
  }

  /// Returns the hash of the choices of one run: channels, a lock, timers, and selects whose choice the seed draws.
  static func fingerprint(_ seed: UInt64) throws -> UInt64 {
    let world = World(seed: seed)
    try world.run {
      let channel = Channel<Int>(2)
      let lock = FairMutex()
      try co_scope { scope in
        for number in 0..<3 {
          scope.launch {
            try lock.withLock { try co_delay(.milliseconds(number)) }
            try channel.send(number)
          }
        }
        for _ in 0..<3 {
          _ = try co_select {
            channel.onReceive { $0 }
            SelectCase.onTimeout(.milliseconds(1)) { Int?.none }
          }
        }
      }
    }
    return world.fingerprint
  }
}
