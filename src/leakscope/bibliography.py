"""The papers behind attacks, models and metrics, by the keys that registries cite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from leakscope.errors import UnknownName

__all__ = ["BIBLIOGRAPHY", "Paper", "paper"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """One publication: ``authors`` as BibTeX joins them, ``venue`` a conference, a journal or an archive's number."""

    key: str
    authors: str
    title: str
    venue: str
    year: int
    kind: str = "inproceedings"

    @property
    def short(self) -> str:
        """As one cites it in passing: ``Zhu et al., NeurIPS 2019``."""
        names = [author.partition(",")[0] for author in self.authors.split(" and ")]
        who = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
        # An archive's number ends in digits of its own: the year goes in brackets there.
        return f"{who}, {self.venue} ({self.year})" if self.kind == "misc" else f"{who}, {self.venue} {self.year}"

    @property
    def bibtex(self) -> str:
        """A complete BibTeX entry under this key."""
        where = {"inproceedings": "booktitle", "article": "journal", "misc": "howpublished"}[self.kind]
        # The second pair of braces keeps BibTeX from lowering the title's capitals.
        fields = {"author": self.authors, "title": f"{{{self.title}}}", where: self.venue, "year": str(self.year)}
        body = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
        return f"@{self.kind}{{{self.key},\n{body}}}"


def paper(key: str) -> Paper:
    """The paper that a registry cites as ``key``."""
    if key not in BIBLIOGRAPHY:
        raise UnknownName("citation", key, BIBLIOGRAPHY)
    return BIBLIOGRAPHY[key]


_PAPERS: Final = (
    Paper(
        key="zhu2019",
        authors="Zhu, Ligeng and Liu, Zhijian and Han, Song",
        title="Deep Leakage from Gradients",
        venue="NeurIPS",
        year=2019,
    ),
    Paper(
        key="zhao2020",
        authors="Zhao, Bo and Mopuri, Konda Reddy and Bilen, Hakan",
        title="iDLG: Improved Deep Leakage from Gradients",
        venue="arXiv:2001.02610",
        year=2020,
        kind="misc",
    ),
    Paper(
        key="geiping2020",
        authors="Geiping, Jonas and Bauermeister, Hartmut and Dröge, Hannah and Moeller, Michael",
        title="Inverting Gradients: How Easy Is It to Break Privacy in Federated Learning?",
        venue="NeurIPS",
        year=2020,
    ),
    Paper(
        key="deng2021",
        authors=(
            "Deng, Jieren and Wang, Yijue and Li, Ji and Wang, Chenghong and Shang, Chao and Liu, Hang and "
            "Rajasekaran, Sanguthevar and Ding, Caiwen"
        ),
        title="TAG: Gradient Attack on Transformer-based Language Models",
        venue="Findings of EMNLP",
        year=2021,
    ),
    Paper(
        key="yin2020",
        authors=(
            "Yin, Hongxu and Molchanov, Pavlo and Alvarez, Jose M. and Li, Zhizhong and Mallya, Arun and Hoiem, Derek "
            "and Jha, Niraj K. and Kautz, Jan"
        ),
        title="Dreaming to Distill: Data-free Knowledge Transfer via DeepInversion",
        venue="CVPR",
        year=2020,
    ),
    Paper(
        key="yin2021",
        authors=(
            "Yin, Hongxu and Mallya, Arun and Vahdat, Arash and Alvarez, Jose M. and Kautz, Jan and Molchanov, Pavlo"
        ),
        title="See through Gradients: Image Batch Recovery via GradInversion",
        venue="CVPR",
        year=2021,
    ),
    Paper(
        key="huang2021",
        authors="Huang, Yangsibo and Gupta, Samyak and Song, Zhao and Li, Kai and Arora, Sanjeev",
        title="Evaluating Gradient Inversion Attacks and Defenses in Federated Learning",
        venue="NeurIPS",
        year=2021,
    ),
    Paper(
        key="zhu2021",
        authors="Zhu, Junyi and Blaschko, Matthew B.",
        title="R-GAP: Recursive Gradient Attack on Privacy",
        venue="ICLR",
        year=2021,
    ),
    Paper(
        key="hatamizadeh2022",
        authors=(
            "Hatamizadeh, Ali and Yin, Hongxu and Roth, Holger R. and Li, Wenqi and Kautz, Jan and Xu, Daguang "
            "and Molchanov, Pavlo"
        ),
        title="GradViT: Gradient Inversion of Vision Transformers",
        venue="CVPR",
        year=2022,
    ),
    Paper(
        key="lu2022",
        authors="Lu, Jiahao and Zhang, Xi Sheryl and Zhao, Tianli and He, Xiangyu and Cheng, Jian",
        title="APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers",
        venue="CVPR",
        year=2022,
    ),
    Paper(
        key="dong2022",
        authors=("Dong, Xin and Yin, Hongxu and Alvarez, Jose M. and Kautz, Jan and Molchanov, Pavlo and Kung, H. T."),
        title="Privacy Vulnerability of Split Computing to Data-Free Model Inversion Attacks",
        venue="BMVC",
        year=2022,
    ),
    Paper(
        key="wu2023",
        authors="Wu, Ruihan and Chen, Xiangyu and Guo, Chuan and Weinberger, Kilian Q.",
        title="Learning to Invert: Simple Adaptive Attacks for Gradient Inversion in Federated Learning",
        venue="UAI",
        year=2023,
    ),
    Paper(
        key="dimitrov2022",
        authors="Dimitrov, Dimitar I. and Balunović, Mislav and Konstantinov, Nikola and Vechev, Martin",
        title="Data Leakage in Federated Averaging",
        venue="Transactions on Machine Learning Research",
        year=2022,
        kind="article",
    ),
    Paper(
        key="dimitrov2024",
        authors="Dimitrov, Dimitar I. and Baader, Maximilian and Müller, Mark Niklas and Vechev, Martin",
        title="SPEAR: Exact Gradient Inversion of Batches in Federated Learning",
        venue="NeurIPS",
        year=2024,
    ),
    Paper(
        key="git2025",
        authors="Chen, Xinping and Liu, Chen",
        title=(
            "Gradient Inversion Transcript: Leveraging Robust Generative Priors to Reconstruct Training Data from "
            "Gradient Leakage"
        ),
        venue="arXiv:2505.20026",
        year=2025,
        kind="misc",
    ),
    Paper(
        key="valadi2025",
        authors=(
            "Valadi, Viktor and Åkesson, Mattias and Östman, Johan and Hoseini, Fazeleh and Toor, Salman and "
            "Hellander, Andreas"
        ),
        title="Practical Feasibility of Gradient Inversion Attacks in Federated Learning",
        venue="arXiv:2508.19819",
        year=2025,
        kind="misc",
    ),
    Paper(
        key="jocher2023",
        authors="Jocher, Glenn and Qiu, Jing and Chaurasia, Ayush",
        title="Ultralytics YOLO",
        venue="github.com/ultralytics/ultralytics",
        year=2023,
        kind="misc",
    ),
    Paper(
        key="feng2021",
        authors="Feng, Chengjian and Zhong, Yujie and Gao, Yu and Scott, Matthew R. and Huang, Weilin",
        title="TOOD: Task-aligned One-stage Object Detection",
        venue="ICCV",
        year=2021,
    ),
    Paper(
        key="he2016",
        authors="He, Kaiming and Zhang, Xiangyu and Ren, Shaoqing and Sun, Jian",
        title="Deep Residual Learning for Image Recognition",
        venue="CVPR",
        year=2016,
    ),
    Paper(
        key="dosovitskiy2021",
        authors=(
            "Dosovitskiy, Alexey and Beyer, Lucas and Kolesnikov, Alexander and Weissenborn, Dirk and Zhai, "
            "Xiaohua and Unterthiner, Thomas and Dehghani, Mostafa and Minderer, Matthias and Heigold, Georg and "
            "Gelly, Sylvain and Uszkoreit, Jakob and Houlsby, Neil"
        ),
        title="An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
        venue="ICLR",
        year=2021,
    ),
    Paper(
        key="touvron2021",
        authors=(
            "Touvron, Hugo and Cord, Matthieu and Douze, Matthijs and Massa, Francisco and Sablayrolles, "
            "Alexandre and Jégou, Hervé"
        ),
        title="Training Data-efficient Image Transformers & Distillation through Attention",
        venue="ICML",
        year=2021,
    ),
    Paper(
        key="abadi2016",
        authors="Abadi, Martín and Chu, Andy and Goodfellow, Ian and McMahan, H. Brendan and "
        "Mironov, Ilya and Talwar, Kunal and Zhang, Li",
        title="Deep Learning with Differential Privacy",
        venue="CCS",
        year=2016,
    ),
    Paper(
        key="bonawitz2017",
        authors="Bonawitz, Keith and Ivanov, Vladimir and Kreuter, Ben and Marcedone, Antonio and "
        "McMahan, H. Brendan and Patel, Sarvar and Ramage, Daniel and Segal, Aaron and Seth, Karn",
        title="Practical Secure Aggregation for Privacy-Preserving Machine Learning",
        venue="CCS",
        year=2017,
    ),
    Paper(
        key="mcmahan2017",
        authors="McMahan, H. Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and Agüera y Arcas, Blaise",
        title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
        venue="AISTATS",
        year=2017,
    ),
    Paper(
        key="alistarh2017",
        authors="Alistarh, Dan and Grubic, Demjan and Li, Jerry and Tomioka, Ryota and Vojnovic, Milan",
        title="QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
        venue="NeurIPS",
        year=2017,
    ),
    Paper(
        key="lin2018",
        authors="Lin, Yujun and Han, Song and Mao, Huizi and Wang, Yu and Dally, William J.",
        title="Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training",
        venue="ICLR",
        year=2018,
    ),
    Paper(
        key="wangni2018",
        authors="Wangni, Jianqiao and Wang, Jialei and Liu, Ji and Zhang, Tong",
        title="Gradient Sparsification for Communication-Efficient Distributed Optimization",
        venue="NeurIPS",
        year=2018,
    ),
    Paper(
        key="bernstein2018",
        authors="Bernstein, Jeremy and Wang, Yu-Xiang and Azizzadenesheli, Kamyar and Anandkumar, Animashree",
        title="signSGD: Compressed Optimisation for Non-Convex Problems",
        venue="ICML",
        year=2018,
    ),
    Paper(
        key="mixup2018",
        authors="Zhang, Hongyi and Cissé, Moustapha and Dauphin, Yann N. and Lopez-Paz, David",
        title="mixup: Beyond Empirical Risk Minimization",
        venue="ICLR",
        year=2018,
    ),
    Paper(
        key="huang2020",
        authors="Huang, Yangsibo and Song, Zhao and Li, Kai and Arora, Sanjeev",
        title="InstaHide: Instance-hiding Schemes for Private Distributed Learning",
        venue="ICML",
        year=2020,
    ),
    Paper(
        key="sun2021",
        authors="Sun, Jingwei and Li, Ang and Wang, Binghui and Yang, Huanrui and Li, Hai and Chen, Yiran",
        title="Soteria: Provable Defense against Privacy Leakage in Federated Learning from Representation Perspective",
        venue="CVPR",
        year=2021,
    ),
    Paper(
        key="zhong2021",
        authors="Zhong, Yaoyao and Deng, Weihong",
        title="Face Transformer for Recognition",
        venue="arXiv:2103.14803",
        year=2021,
    ),
    Paper(
        key="balunovic2022",
        authors="Balunović, Mislav and Dimitrov, Dimitar I. and Staab, Robin and Vechev, Martin",
        title="Bayesian Framework for Gradient Leakage",
        venue="ICLR",
        year=2022,
    ),
    Paper(
        key="levenberg1944",
        authors="Levenberg, Kenneth",
        title="A Method for the Solution of Certain Non-Linear Problems in Least Squares",
        venue="Quarterly of Applied Mathematics",
        year=1944,
        kind="article",
    ),
    Paper(
        key="marquardt1963",
        authors="Marquardt, Donald W.",
        title="An Algorithm for Least-Squares Estimation of Nonlinear Parameters",
        venue="Journal of the Society for Industrial and Applied Mathematics",
        year=1963,
        kind="article",
    ),
    Paper(
        key="wang2003",
        authors="Wang, Zhou and Simoncelli, Eero P. and Bovik, Alan C.",
        title="Multiscale Structural Similarity for Image Quality Assessment",
        venue="Asilomar Conference",
        year=2003,
    ),
    Paper(
        key="wang2004",
        authors="Wang, Zhou and Bovik, Alan C. and Sheikh, Hamid R. and Simoncelli, Eero P.",
        title="Image Quality Assessment: From Error Visibility to Structural Similarity",
        venue="IEEE Trans. Image Processing",
        year=2004,
        kind="article",
    ),
    Paper(
        key="zhang2018",
        authors="Zhang, Richard and Isola, Phillip and Efros, Alexei A. and Shechtman, Eli and Wang, Oliver",
        title="The Unreasonable Effectiveness of Deep Features as a Perceptual Metric",
        venue="CVPR",
        year=2018,
    ),
)

BIBLIOGRAPHY: Final[Mapping[str, Paper]] = MappingProxyType({one.key: one for one in _PAPERS})
"""Every paper, by key."""
