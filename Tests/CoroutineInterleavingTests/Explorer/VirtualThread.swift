internal import CCoroutineRuntime
import Coroutine

/// A thread of a model: a generator that yields where another thread runs.
final class VirtualThread {
  let name: String
  var isFinished = false
  /// The execution may end while the thread waits.
  var mayEnd = false
  /// Stands in for the words that the C library keeps for each thread.
  let words: UnsafeMutablePointer<cco_layer_words>
  private let generator: Generator<Void, Never, Void>
  private let own: Own

  private final class Own {
    var yielder: Yielder<Void, Never>?
  }

  init(_ name: String, _ body: @escaping () -> Void) {
    let own = Own()
    self.name = name
    self.own = own
    words = .allocate(capacity: 1)
    words.initialize(to: cco_layer_words())
    generator = Generator(stack: .bytes(64 << 10)) { yielder in
      own.yielder = yielder
      body()
    }
  }

  deinit { words.deallocate() }

  /// Runs the thread until it leaves; false: it has ended.
  func run() -> Bool { generator.next() != nil }

  /// Called by the thread itself: stops it until `run` is called again.
  func leave() {
    do {
      _ = try own.yielder.unsafelyUnwrapped(())
    } catch {
      fatalError("a virtual thread was ended from outside: \(error)")
    }
  }
}

/// What an exploration has found.
struct Exploration: CustomStringConvertible {
  /// How many schedules the last bound has.
  var schedules: Int
  /// What was wrong; nil: nothing in any schedule.
  var failure: String?
  var preemptions = 0
  var trace: [String] = []

  var description: String {
    guard let failure else { return "\(schedules) schedules, no failure" }
    return "\(failure), after \(schedules) schedules with \(preemptions) preemptions\n  "
      + trace.joined(separator: "\n  ")
  }
}
