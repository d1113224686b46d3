"""Ids of accepted messages as they are kept to recognise duplicates: 27 bytes each, in memory and in the store.

A digest of 16 bytes stands for the id: that two different ids have the same one is less likely than a broken disk, and
whoever wants to make two must try 2^64 times. Behind it stand the number the message got and when it was accepted.
"""

from hashlib import blake2b
from typing import Final

from spillway.model.message import Message

DIGEST_BYTES: Final = 16
ID_BYTES: Final = 27
NUMBER_BITS: Final = 40
NUMBER_MASK: Final = (1 << NUMBER_BITS) - 1
_NUMBER_BYTES: Final = NUMBER_BITS // 8
_PLACE_BYTES: Final = ID_BYTES - DIGEST_BYTES


def digest_of(message: Message, is_partitioned: bool) -> bytes:
    """In a partitioned entity an id is unique together with the key that chooses the partition."""
    data = message.message_id.encode("utf-8", "surrogatepass")
    if is_partitioned:
        key = message.partition_key if message.session_id is None else message.session_id
        text = b"" if key is None else b"k" + key.encode("utf-8", "surrogatepass")
        data = b"%d %d " % (message.message_id_type, len(data)) + data + text
    else:
        data = b"%d" % message.message_id_type + data
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def place_of(sequence_number: int, accepted_ms: int) -> int:
    """Where and when an id was accepted, in one number: a later one is greater."""
    return accepted_ms << NUMBER_BITS | sequence_number


def accepted_ms_of(place: int) -> int:
    return place >> NUMBER_BITS


def number_of(place: int) -> int:
    return place & NUMBER_MASK


def pack_id(digest: bytes, place: int) -> bytes:
    return digest + place.to_bytes(_PLACE_BYTES, "little")


def place_at(ids: bytes | bytearray, at: int) -> int:
    """The place of the id that begins at this byte: its number, and when it was accepted."""
    return int.from_bytes(ids[at + DIGEST_BYTES : at + ID_BYTES], "little")


def number_at(ids: bytes | bytearray, at: int) -> int:
    """The number alone of the id that begins at this byte."""
    return int.from_bytes(ids[at + DIGEST_BYTES : at + DIGEST_BYTES + _NUMBER_BYTES], "little")
