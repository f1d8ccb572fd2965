#if Demo
import CZlib
import Foundation

/// zlib, as far as a server needs it.
enum Gzip {
  struct Failure: Error {
    var code: Int32
  }

  /// `data` as a gzip file.
  static func packed(_ data: Data) throws -> Data {
    var stream = z_stream()
    // 16 on top of the largest window means gzip's header instead of zlib's.
    let window = MAX_WBITS + 16
    let code = deflateInit2_(
      &stream,
      Z_DEFAULT_COMPRESSION,
      Z_DEFLATED,
      window,
      8,
      Z_DEFAULT_STRATEGY,
      ZLIB_VERSION,
      Int32(MemoryLayout<z_stream>.size)
    )
    guard code == Z_OK else { throw Failure(code: code) }
    defer { deflateEnd(&stream) }
    var input = Array(data)
    var output = [UInt8](repeating: 0, count: Int(deflateBound(&stream, UInt(input.count))))
    let end = input.withUnsafeMutableBufferPointer { input in
      output.withUnsafeMutableBufferPointer { output in
        stream.next_in = input.baseAddress
        stream.avail_in = UInt32(input.count)
        stream.next_out = output.baseAddress
        stream.avail_out = UInt32(output.count)
        // The bound leaves room for all of it, so one call is enough.
        return deflate(&stream, Z_FINISH)
      }
    }
    guard end == Z_STREAM_END else { throw Failure(code: end) }
    return Data(output.prefix(Int(stream.total_out)))
  }
}
#endif
