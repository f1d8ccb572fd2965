#if Demo
import Coroutine

/// Counts what is read, and says so now and then.
///
/// Between two pieces it lets others run: parsing is work for the processor, and a feed of 20 MB would otherwise keep
/// its thread from everybody else's feeds, deadlines and cancellation for as long as it takes.
final class Meter: ByteSource {
  private let source: any ByteSource
  private let tell: (Int) -> Void
  private(set) var bytes = 0

  init(_ source: any ByteSource, tell: @escaping (_ bytes: Int) -> Void) {
    (self.source, self.tell) = (source, tell)
  }

  func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    try co_yield()
    let count = try source.read(into: buffer)
    bytes += count
    tell(bytes)
    return count
  }
}
#endif
