import Synchronization
import Testing

// Support/ThreadLock.swift: a lock whose waiting threads sleep in the kernel.

extension InterleavingTests {
  @Suite struct ThreadLockTests {
    @Test func `one thread at a time holds the lock, and each gets it`() {
      let found = Explorer.explore { Self.model($0, "a", "b") }
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `of three threads none sleeps for ever`() {
      let found = Explorer.explore(preemptions: 2) { Self.model($0, "a", "b", "c") }
      #expect(found.failure == nil, "\(found)")
    }

    @Test(arguments: [
      Fault.torn("takeFree()"),  // two find the lock free
      .torn("lockContended()"),  // the same, for a thread that has slept
      .skipped("lockContended()"),  // sleeps without CONTENDED: the holder does not wake it
      .torn("release()"),  // stores FREE over a CONTENDED that came in between
      .skipped("release()"),
      .reads(2, in: "clinux_futex_wait(_:_:_:)"),  // sleeps although the word has changed
      .reads(1, in: "clinux_futex_wait(_:_:_:)"),  // never sleeps, so the execution does not end
    ])
    func `the lock has two holders, or a thread waits for ever, without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault) { Self.model($0, "a", "b") }.failure != nil)
    }

    // Tried by hand: to take the lock as TAKEN after a sleep. Of three threads, one then sleeps for ever.

    private final class World {
      let lock = ThreadLock()
      let inside = Atomic<Int>(0)
    }

    /// Each thread takes the lock, and leaves it.
    private static func model(_ run: Explorer, _ names: String...) {
      Futex.sleepers = [:]
      let world = World()
      for name in names {
        run.thread(name) {
          world.lock.lock()
          run.require(world.inside.wrappingAdd(1, ordering: .relaxed).newValue == 1, "two threads hold the lock")
          world.inside.wrappingSubtract(1, ordering: .relaxed)
          world.lock.unlock()
        }
      }
      run.atEnd { run.require(world.inside.now == 0, "a thread did not leave") }
    }
  }
}
