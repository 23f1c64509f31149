"""Random and mutated messages, texts and bytes, reproducible from a seed."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_WHOLE = (
    0,
    1,
    2,
    5,
    10,
    100,
    101,
    1000,
    1001,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
    -1,
    -(2**31),
    -(2**63),
)
_REAL = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-45, 1e38, -1e38, 1e308, math.nan, math.inf, -math.inf)
_TEXTS = (
    "",
    " ",
    "x",
    "TARGETCIT",
    "as TARGETCIT has shown",
    "TARGETCIT TARGETCIT OTHERCIT",
    "\x00",
    "a\x00b",
    "\u202e\u200b\ufeff",
    "\U0001f600" * 3,
    "é" + "\u0301" * 50,
    "../../etc/passwd",
    "'; DROP TABLE papers; --",
    "%s%n{0}",
    "2020-13-45",
    "1",
    "\r\n\r\n",
    "\ud7ff\ue000\uffff",
)
_DEEPEST = 6
_WIRE = FieldDescriptor
_LIMITS = {
    _WIRE.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    _WIRE.CPPTYPE_UINT32: (0, 2**32 - 1),
    _WIRE.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    _WIRE.CPPTYPE_UINT64: (0, 2**64 - 1),
}


class Mutator:
    """Makes inputs. `learn` adds texts, e.g. ids and tokens from answers, so that inputs get past the first checks."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._known: list[str] = []

    def learn(self, message: Message) -> None:
        """Remembers the texts of a message."""
        for field, value in message.ListFields():
            values = value if field.is_repeated else [value]
            if field.message_type is not None:
                if not field.message_type.GetOptions().map_entry:
                    for each in list(values)[:20]:
                        self.learn(each)
            elif field.type == _WIRE.TYPE_STRING:
                self._known += [each for each in list(values)[:20] if each]
        if len(self._known) > 2000:
            self._known = self.random.sample(self._known, 1000)

    def message(self, descriptor: Descriptor, depth: int = 0) -> Message:
        """A message with random fields."""
        made = GetMessageClass(descriptor)()
        share = self.random.choice((0.2, 0.5, 0.9))
        for field in descriptor.fields:
            if self.random.random() < share and not (depth >= _DEEPEST and field.message_type is not None):
                self._fill(made, field, depth)
        return made

    def mutated(self, message: Message) -> Message:
        """A copy with some of its fields, anywhere inside, replaced, repeated or cleared."""
        copy = type(message)()
        copy.CopyFrom(message)
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            self._change(copy, 0)
        return copy

    def _change(self, message: Message, depth: int) -> None:
        inside = [
            each
            for field, value in message.ListFields()
            if field.message_type is not None and not field.message_type.GetOptions().map_entry
            for each in (value if field.is_repeated else [value])
        ]
        if inside and self.random.random() < 0.7:
            self._change(self.random.choice(inside), depth + 1)
            return
        if not message.DESCRIPTOR.fields:
            return
        field = self.random.choice(message.DESCRIPTOR.fields)
        if self.random.random() < 0.3:
            message.ClearField(field.name)
        self._fill(message, field, depth)

    def _fill(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return
        count = self.random.choice((1, 1, 2, 3, 7, 150)) if field.is_repeated else 1
        if field.message_type is not None:
            if field.is_repeated:
                for _ in range(count if depth < 2 else min(count, 3)):
                    getattr(message, field.name).add().CopyFrom(self.message(field.message_type, depth + 1))
            else:
                getattr(message, field.name).CopyFrom(self.message(field.message_type, depth + 1))
        elif field.is_repeated and getattr(message, field.name) and self.random.random() < 0.5:
            values = getattr(message, field.name)
            values[self.random.randrange(len(values))] = self._value(field)
        elif field.is_repeated:
            getattr(message, field.name).extend(self._value(field) for _ in range(count))
        else:
            setattr(message, field.name, self._value(field))

    def _value(self, field: FieldDescriptor) -> object:
        match field.cpp_type:
            case _WIRE.CPPTYPE_STRING:
                return self.text() if field.type == _WIRE.TYPE_STRING else self.bytes_()
            case _WIRE.CPPTYPE_BOOL:
                return self.random.random() < 0.5
            case _WIRE.CPPTYPE_DOUBLE:
                return self.random.choice((*_REAL, self.random.gauss(0, 10)))
            case _WIRE.CPPTYPE_FLOAT:
                value = self.random.choice((*_REAL, self.random.gauss(0, 10)))
                return value if not math.isfinite(value) else max(-3e38, min(3e38, value))
            case _WIRE.CPPTYPE_ENUM:
                numbers = [value.number for value in field.enum_type.values]
                return self.random.choice((*numbers, *numbers, 99, -1))
            case kind:
                low, high = _LIMITS[kind]
                return min(max(self.random.choice((*_WHOLE, self.random.randrange(50))), low), high)

    def text(self) -> str:
        """A text: one seen before, a difficult one, or random characters of a random length."""
        dice = self.random.random()
        if dice < 0.4 and self._known:
            return self.random.choice(self._known)
        if dice < 0.8:
            return self.random.choice(_TEXTS)
        if dice < 0.82:
            return self.random.choice("aé\U0001f600 ") * self.random.choice((2_001, 20_001, 60_000))
        letters = "abcTARGETCIT {}\\[]@%$#&~^_\"'<>/:;,.\n\t0123456789éß漢\u0301\u200d"
        return "".join(self.random.choices(letters, k=self.random.choice((1, 5, 40, 400))))

    def bytes_(self) -> bytes:
        """Random bytes."""
        return self.random.choice((b"", b"\x00", self.random.randbytes(64), self.text().encode("utf-8", "replace")))

    def broken(self, data: bytes) -> bytes:
        """The bytes with some of them changed, inserted, repeated or cut off."""
        changed = bytearray(data)
        for _ in range(self.random.choice((1, 1, 2, 5, 20))):
            at = self.random.randrange(len(changed) + 1)
            match self.random.randrange(6):
                case 0 if at < len(changed):
                    changed[at] ^= 1 << self.random.randrange(8)
                case 1:
                    changed[at:at] = self.random.randbytes(self.random.choice((1, 2, 8)))
                case 2:
                    del changed[at : at + self.random.choice((1, 2, 8, 64))]
                case 3:
                    changed[at : at + 1] = self.random.choice((b"\x00", b"\xff", b"\x80", b"\x7f"))
                case 4:
                    changed[at:at] = changed[at : at + self.random.choice((4, 32, 256))] * self.random.choice((1, 8))
                case _:
                    number = self.random.choice((2**63, 2**32, 2**31, 255))
                    changed[at:at] = struct.pack("<Q", number)
        return bytes(changed[: 1 << 20])

    def woven(self, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
        """Parts of seeds, pieces of syntax and random bytes, put together."""
        pieces = bytearray()
        for _ in range(self.random.choice((1, 2, 5, 20, 80))):
            dice = self.random.random()
            if dice < 0.35 and seeds:
                seed = self.random.choice(seeds)
                at = self.random.randrange(len(seed) + 1)
                pieces += seed[at : at + self.random.choice((8, 64, 512))]
            elif dice < 0.85 and tokens:
                pieces += self.random.choice(tokens) * self.random.choice((1, 1, 1, 2, 3, 200))
            else:
                pieces += self.bytes_()[:200]
        return bytes(pieces)
