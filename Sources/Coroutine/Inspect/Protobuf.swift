/// Writes messages in the wire format of protocol buffers.
///
/// A field is a key, (number << 3) | type, and a value: type 0 is a varint, and type 2 a length with so many bytes.
/// Zero is a field's default, so it is not written, unless it is one of packed values.
struct ProtobufWriter {
  private(set) var bytes: [UInt8] = []

  private mutating func append(varint value: UInt64) {
    var rest = value
    while rest >= 0x80 {
      bytes.append(UInt8(truncatingIfNeeded: rest) | 0x80)
      rest >>= 7
    }
    bytes.append(UInt8(rest))
  }

  mutating func add(_ number: UInt64, _ value: UInt64) {
    if value == 0 { return }
    append(varint: number << 3)
    append(varint: value)
  }

  /// Adds a signed number, which is not zigzag-coded: the type int64.
  mutating func add(_ number: UInt64, signed value: Int64) { add(number, UInt64(bitPattern: value)) }

  mutating func add(_ number: UInt64, _ content: some Collection<UInt8>) {
    append(varint: number << 3 | 2)
    append(varint: UInt64(content.count))
    bytes.append(contentsOf: content)
  }

  /// Adds a message inside of this one.
  mutating func add(_ number: UInt64, message write: (inout ProtobufWriter) -> Void) {
    var inner = ProtobufWriter()
    write(&inner)
    add(number, inner.bytes)
  }

  /// Adds packed numbers.
  mutating func add(_ number: UInt64, packed values: [UInt64]) {
    var inner = ProtobufWriter()
    for value in values { inner.append(varint: value) }
    add(number, inner.bytes)
  }
}
