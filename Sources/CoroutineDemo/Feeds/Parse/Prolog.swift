#if Demo
/// The beginning of a feed, put right where an XML parser would give up and every feed reader goes on.
///
///   - white space before `<?xml`,
///   - an encoding that only the HTTP answer names,
///   - HTML's entities, which XML does not have: with a reference to declarations elsewhere, the parser asks its
///     delegate about each entity that it does not know, instead of failing.
///
/// Documents in UTF-16 are left as they are: what is searched for here are bytes of ASCII.
final class Prolog: ByteSource {
  /// More than that before the first element is no prolog.
  private static let longest = 8_192
  private let source: any ByteSource
  private let charset: String?
  /// What has been read, and not handed on yet; nil before the first read.
  private var head: ArraySlice<UInt8>?

  /// `charset` is what the answer's Content-Type says, if it says something.
  init(_ source: any ByteSource, charset: String? = nil) {
    (self.source, self.charset) = (source, charset)
  }

  func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    let head = try self.head ?? mended(beginning())[...]
    self.head = head
    guard !head.isEmpty else { return try source.read(into: buffer) }
    let count = min(head.count, buffer.count)
    buffer.copyBytes(from: head.prefix(count))
    self.head = head.dropFirst(count)
    return count
  }

  /// As many bytes as show where the first element begins, or that it begins nowhere near.
  private func beginning() throws -> [UInt8] {
    var bytes: [UInt8] = []
    let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 4_096, alignment: 1)
    defer { buffer.deallocate() }
    while bytes.count < Self.longest, Self.place(in: bytes) == nil {
      let count = try source.read(into: buffer)
      if count == 0 { break }
      bytes += buffer[..<count]
    }
    return bytes
  }

  private func mended(_ bytes: [UInt8]) -> [UInt8] {
    guard let place = Self.place(in: bytes) else { return bytes }
    var mended = bytes
    if place.isElement { mended.insert(contentsOf: "<!DOCTYPE feed SYSTEM \"html-entities\">".utf8, at: place.index) }
    if let charset, place.isBare, !charset.contains("\"") {
      mended.insert(contentsOf: "<?xml version=\"1.0\" encoding=\"\(charset)\"?>".utf8, at: place.start)
    }
    mended.removeSubrange(place.blanks)
    return mended
  }

  /// What stands where.
  private struct Place {
    /// White space at the very beginning.
    var blanks: Range<Int>
    /// Where the document itself begins.
    var start: Int
    /// The first element or document type.
    var index: Int
    /// An element: there is no document type.
    var isElement: Bool
    /// No `<?xml` says in which encoding it is, nor does a byte order mark.
    var isBare: Bool
  }

  /// nil: not there yet.
  private static func place(in bytes: [UInt8]) -> Place? {
    let mark: [UInt8] = [0xEF, 0xBB, 0xBF]
    let start = bytes.starts(with: mark) ? mark.count : 0
    let text = bytes[start...].firstIndex { $0 > 32 } ?? bytes.endIndex
    var index = text
    while index + 4 <= bytes.count {
      let rest = bytes[index...]
      if rest.starts(with: "<?".utf8) {
        guard let end = end(of: "?>", in: rest) else { return nil }
        index = end
      } else if rest.starts(with: "<!--".utf8) {
        guard let end = end(of: "-->", in: rest) else { return nil }
        index = end
      } else if bytes[index] <= 32 {
        index += 1
      } else {
        let isElement =
          bytes[index] == UInt8(ascii: "<") && bytes[index + 1] != UInt8(ascii: "!") && bytes[index + 1] > 32
        let isBare = start == 0 && !bytes[text...].starts(with: "<?xml".utf8) && bytes[index] == UInt8(ascii: "<")
        return Place(blanks: start..<text, start: text, index: index, isElement: isElement, isBare: isBare)
      }
    }
    return nil
  }

  private static func end(of mark: String, in bytes: ArraySlice<UInt8>) -> Int? {
    bytes.firstRange(of: Array(mark.utf8))?.upperBound
  }
}
#endif
