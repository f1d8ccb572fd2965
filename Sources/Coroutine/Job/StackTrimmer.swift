internal import CCoroutine
import Dispatch
import Synchronization

// When stacks that nobody uses give their memory back: some seconds after they were last needed. Not at once, because a
// page that is given back has to be faulted in and cleared again, many times the price of a hot stack, and a program
// that goes idle between two bursts would pay it in each.
//
//   RESTING --a scheduler goes idle, many stacks are pooled--> WATCHING --every two seconds--> trim what was not needed
//      ^                                                          |
//      +--------------- few stacks are pooled --------------------+
//
// `isWatching` goes from false to true by one exchange, so there is one watch. A scheduler that goes idle
// while the watch is about to end finds it true and leaves: so the watch looks once more after it has set it to false.

enum StackTrimmer {
  /// Pooled stacks that stay hot: more than a burst of launches needs, at 4 KiB each nothing to a server.
  private static let keep = 1024
  private static let isWatching = Atomic<Bool>(false)
  private static let queue = DispatchQueue(label: "coroutine.stacks", qos: .utility)

  private static var areMany: Bool { cco_pooled_dirty() > UInt64(2 * keep) }

  /// Called by a scheduler that goes idle.
  static func trimIfMany() {
    guard !isWatching.load(ordering: .relaxed), areMany else { return }
    if !isWatching.exchange(true, ordering: .sequentiallyConsistent) { watch() }
  }

  /// `idle`: how many rounds have found nothing; after two, what is left is in use, or too little of each size.
  private static func watch(_ idle: Int = 0) {
    queue.asyncAfter(deadline: .now() + .seconds(2)) {
      let trimmed = cco_trim_surplus(keep)
      if areMany, idle < 2 { return watch(trimmed == 0 ? idle + 1 : 0) }
      isWatching.store(false, ordering: .sequentiallyConsistent)
      // On behalf of one that went idle meanwhile and left it to this watch.
      if idle < 2 { trimIfMany() }
    }
  }
}
