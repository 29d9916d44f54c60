"""A small transformer, and sequences for it to continue: each goes on with its first half, letter by letter."""

import torch
from torch import nn

LETTERS, LENGTH, WIDTH, HEADS, LAYERS = 16, 16, 64, 4, 2


class Attention(nn.Module):
    """Causal self-attention. Its projections are modules of their own, so that they can be split by columns and rows."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # As many heads as this rank's columns make.
        heads = lambda part: part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)  # noqa: E731
        query, key, value = (heads(project(x)) for project in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.letters(text) + self.places(torch.arange(text.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch(step: int, share: int, count: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts, and what follows each letter; the first half cannot be known and does not count."""
    generator = torch.Generator().manual_seed(1000 * step + share)
    half = torch.randint(LETTERS, (count, LENGTH // 2), generator=generator)
    text = torch.cat([half, half], 1)
    following = torch.cat([text[:, 1:], text[:, :1]], 1).clone()
    following[:, : LENGTH // 2 - 1] = -100
    following[:, -1] = -100
    return text, following


def loss_of(model: nn.Module, step: int, share: int) -> torch.Tensor:
    text, following = batch(step, share)
    return nn.functional.cross_entropy(model(text).flatten(0, 1), following.flatten())
