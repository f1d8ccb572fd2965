#if Demo
@testable import CoroutineDemo

/// Bytes to read, optionally in small pieces.
final class BytesInMemory: ByteSource {
  private var rest: ArraySlice<UInt8>
  private let piece: Int

  init(_ bytes: some Sequence<UInt8>, piece: Int = .max) {
    rest = Array(bytes)[...]
    self.piece = piece
  }

  func read(into buffer: UnsafeMutableRawBufferPointer) -> Int {
    let taken = rest.prefix(min(buffer.count, piece))
    buffer.copyBytes(from: taken)
    rest = rest.dropFirst(taken.count)
    return taken.count
  }
}
#endif
