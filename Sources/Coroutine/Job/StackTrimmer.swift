internal import CCoroutine
import Dispatch
import Synchronization

// Returns the memory of unused stacks and cells some seconds after their last use. It does not do so at once, because a
// returned page must be faulted in and cleared again. That costs many times as much as a hot stack, and a program that
// goes idle between two bursts would pay it in each burst.
//
//   IDLE    --a scheduler goes idle, many stacks are pooled--> WATCHING --every two seconds--> trim the unneeded stacks
//      ^                                                          |
//      +--------------- few stacks are pooled --------------------+
//
// `isWatching` changes from false to true by one exchange, so there is one watch. A scheduler that goes idle while the
// watch is about to end finds it true, and relies on the watch. So the watch checks once more after it has set it to
// false.

enum StackTrimmer {
  /// The number of pooled stacks that stay hot: more than a burst of launches needs, and at 4 KiB each little for a
  /// server.
  private static let keep = 1024
  private static let isWatching = Atomic<Bool>(false)
  private static let queue = DispatchQueue(label: "coroutine.stacks", qos: .utility)

  /// The number of pooled cells that keep their memory, 4 MiB.
  private static let keptCells = 16_384

  private static var areMany: Bool {
    cco_pooled_dirty() > UInt64(2 * keep) || cco_cells_pooled() > UInt64(2 * keptCells)
  }

  /// Starts the watch if much is pooled; called by a scheduler that goes idle.
  static func trimIfMany() {
    guard !isWatching.load(ordering: .relaxed), areMany else { return }
    if !isWatching.exchange(true, ordering: .sequentiallyConsistent) { watch() }
  }

  /// `idle` is the number of rounds that found nothing; after two, the remaining stacks are in use, or too few of each
  /// size.
  private static func watch(_ idle: Int = 0) {
    queue.asyncAfter(deadline: .now() + .seconds(2)) {
      let trimmed = cco_trim_surplus(keep) + cco_cells_trim(keptCells)
      if areMany, idle < 2 { return watch(trimmed == 0 ? idle + 1 : 0) }
      isWatching.store(false, ordering: .sequentiallyConsistent)
      // On behalf of a scheduler that went idle meanwhile and relied on this watch.
      if idle < 2 { trimIfMany() }
    }
  }
}
