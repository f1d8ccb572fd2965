/// The text of a schedule: the world's seed, and the choices that are not 0, in base 32.
///
/// Format: the version `1`, the seed, then two numbers for each choice that is not 0: the number of zeros before it,
/// and the choice. A number consists of 5-bit digits, the least significant first. The low four bits of a digit carry
/// the number; the highest bit says that another digit follows.
enum Token {
  private static let digits = Array("0123456789abcdefghjkmnpqrstvwxyz".utf8)

  static func encode(_ choices: [Choice], seed: UInt64) -> String {
    var text: [UInt8] = [digits[1]]
    func append(_ number: UInt64) {
      var rest = number
      repeat {
        let digit = Int(rest & 15)
        rest >>= 4
        text.append(digits[digit | (rest > 0 ? 16 : 0)])
      } while rest > 0
    }
    append(seed)
    var zeros: UInt64 = 0
    for choice in choices {
      if choice.chosen == 0 {
        zeros += 1
      } else {
        append(zeros)
        append(UInt64(choice.chosen))
        zeros = 0
      }
    }
    return String(decoding: text, as: UTF8.self)
  }

  static func decode(_ token: String) -> (choices: [Choice], seed: UInt64)? {
    var numbers: [UInt64] = []
    var number: UInt64 = 0
    var shift: UInt64 = 0
    let text = Array(token.utf8)
    guard text.first == digits[1] else { return nil }
    for byte in text.dropFirst() {
      guard let digit = digits.firstIndex(of: byte), shift < 64 else { return nil }
      number |= UInt64(digit & 15) << shift
      shift += 4
      if digit < 16 {
        numbers.append(number)
        (number, shift) = (0, 0)
      }
    }
    guard shift == 0, numbers.count % 2 == 1 else { return nil }
    var choices: [Choice] = []
    for index in stride(from: 1, to: numbers.count, by: 2) {
      guard numbers[index] < 1 << 24, numbers[index + 1] < 1 << 16 else { return nil }
      let zero = Choice(chosen: 0, count: 1, kind: .next)
      choices.append(contentsOf: repeatElement(zero, count: Int(numbers[index])))
      choices.append(Choice(chosen: UInt16(numbers[index + 1]), count: 0, kind: .next))
    }
    return (choices, numbers[0])
  }
}
