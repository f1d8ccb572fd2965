#if HTTP
import Glibc

/// Memory of the buffers, by malloc itself: `allocate` of a pointer takes posix_memalign, for four times as long.
enum Memory {
  /// Returns memory of this size, with the bytes of `old`, which is released; free by `free`.
  static func resize(_ old: UnsafeMutableRawPointer?, _ size: Int) -> UnsafeMutableRawPointer {
    guard let new = realloc(old, size) else { fatalError("there is no memory for a buffer of \(size) bytes") }
    return new
  }
}
#endif
