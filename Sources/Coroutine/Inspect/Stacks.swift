internal import CCoroutine
import Synchronization

/// When stacks that nobody uses give their memory back.
enum Stacks {
  /// Pooled stacks that stay hot: more than a burst of launches needs, at 4 KiB each nothing to a server.
  private static let keep = 1024

  /// Called by a scheduler that goes idle.
  static func trimIfMany() {
    if cco_stacks().pooled_dirty > UInt64(2 * keep) { cco_trim(keep) }
  }
}
